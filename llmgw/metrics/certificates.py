"""How long certificates hold. The same of a server and of an agent."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.metrics.family import Family

SECONDS_LEFT = Family(
    "llmgw_certificate_seconds_left",
    "gauge",
    "Seconds until a certificate ends, negative once it has; kind says whose: server, authority, node, …",
    ("name", "kind"),
    "certificates: one a node, and the server's own",
)
FAMILIES = (SECONDS_LEFT,)


def certificate_text(ends: Iterable[tuple[str, str, float]], now: float) -> str:
    """`ends` are names, kinds and ends; these and `now` in seconds since the epoch."""
    return SECONDS_LEFT.text(((name, kind), at - now) for name, kind, at in ends)
