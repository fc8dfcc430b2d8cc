"""Addresses of pages whose names come from outside: quoted so that they are one path, whatever is in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from llmgw.messages.admin import HistoryEntry

RESTART_ASKED = "restart asked for"


def model_url(name: str) -> str:
    """The page of a model. Slashes stay, for people; but browsers take dot segments out, also quoted ones."""
    dots = {".", ".."} & set(name.split("/"))
    return f"/admin/models/{_quoted(name, '' if dots else '/@:+')}"


def node_url(node_id: str) -> str:
    """The page of a node."""
    return f"/admin/nodes/{_quoted(node_id)}"


def replica_url(replica_id: str) -> str:
    """Where a replica is told of: its model's page, or the history once it is gone."""
    return f"/admin/replicas/{_quoted(replica_id, ':@+')}"


def fabric_url(name: str) -> str:
    """The drawing of a fabric, by its id or its name."""
    return f"/admin/fabrics/{_quoted(name)}"


def subject_url(entry: HistoryEntry) -> str | None:
    """The page of what an entry of the history is about; None where there is none."""
    if entry.kind == "node" or entry.nodes == [entry.subject]:
        return node_url(entry.subject)
    if entry.kind == "replica" or entry.event == RESTART_ASKED:
        return replica_url(entry.subject)
    if entry.kind == "fabric":
        return fabric_url(entry.subject)
    return model_url(entry.model) if entry.model else None


def _quoted(text: str, safe: str = "") -> str:
    # As bytes: half a surrogate pair, which JSON can hold, has no encoding.
    return quote(text.encode("utf-8", "replace"), safe=safe)


LINKS: dict[str, Callable[[Any], str | None]] = {
    "model_url": model_url,
    "node_url": node_url,
    "replica_url": replica_url,
    "fabric_url": fabric_url,
    "subject_url": subject_url,
}
"""Filters of the templates."""
