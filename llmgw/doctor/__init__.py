"""Checks of one node, without a server: a list of checks in, a list of findings out.

A check looks and changes nothing. It knows nothing of how findings are shown.
"""
