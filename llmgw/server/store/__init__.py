"""Desired state and history in SQLite: never what is running.

`Store` is the door (`store.py`), `StoreInterface` the seam that the control plane calls (`interface.py`).
"""
