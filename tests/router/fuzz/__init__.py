"""Fuzzing of both protocol classes, joined as they are in a router and without a socket between.

`scripts/fuzz --seconds N` runs it for long; `tests/router/test_fuzz.py` a little of it.
"""
