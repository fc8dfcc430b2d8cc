"""Desired state and history in SQLite: never what is running."""
