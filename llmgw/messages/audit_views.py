"""What the admin API says of the audit log: who asked for what, from where, and how it ended.

Times are seconds since the epoch (UTC).
"""

from __future__ import annotations

import msgspec


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A change that somebody asked for, also one that was refused; a login; or wrong tokens, counted together."""

    id: int
    """Grows with time."""
    at: float
    by: str = ""
    """The name of the token that asked, `SIGHUP` or `restore`; empty: a token that nobody knows."""
    address: str = ""
    """Where it came from; empty: from the server's own host, without HTTP."""
    method: str = ""
    route: str = ""
    """The route's form, such as `/api/v1/nodes/{node}/drain`; the path itself where no route has it."""
    subject: str = ""
    """What it was about: a node, a model and its profile, a key's or a token's name, …"""
    summary: str = ""
    """What was wished, in a few words and without secrets."""
    status: int = 0
    """The answer's HTTP status, or what it would have been; 0: there was none."""
    message: str = ""
    """The answer's sentence."""
    count: int = 1
    """How many times: above 1 only for wrong tokens, which are counted by address."""
    last_at: float | None = None
    """When the last of them came."""
