"""Faults that are planted in a demo's fleet, each with the finding that must tell of it.

Planting is all that happens here; whether it is found and shown is for the scenario `problems` to judge.
"""
