"""Backups of a server's state in one file: made beside a running server, checked, and put back.

Nothing here knows of the fleet: what runs is the nodes' to say, whatever state a server starts with.
"""
