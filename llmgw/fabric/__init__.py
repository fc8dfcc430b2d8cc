"""The fabric as its own tools tell it: ibnetdiscover, subnet managers, perftest. Text in, facts out, no I/O.

Nothing here asks a tool, knows the time, or keeps anything between two calls.
"""
