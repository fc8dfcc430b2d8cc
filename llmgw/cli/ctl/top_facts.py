"""What `llmgw ctl top` draws: five answers of the admin API, asked for together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from llmgw.cli.ctl.failures import RefusedError
from llmgw.messages.admin import ModelView, NodeView, ReplicaView, ServerView
from llmgw.messages.recent_views import ModelRates

if TYPE_CHECKING:
    from llmgw.cli.ctl.client import AdminClient

PARTS = ("server", "models", "rates", "nodes", "replicas")
"""The paths below `/api/v1/` whose answers make one frame, and their names in `-o json`."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the fleet. `rates` is None for a server that is too old to know them."""

    at: float
    """Seconds since the epoch, by this host's clock."""
    server: ServerView
    models: list[ModelView]
    rates: list[ModelRates] | None
    nodes: list[NodeView]
    replicas: list[ReplicaView]


def ask(api: AdminClient) -> dict[str, Any]:
    """The answers as they came, with `at` beside them. Raises SentenceError."""
    answers: dict[str, Any] = {"at": time.time()}
    for part in PARTS:
        try:
            answers[part] = api.get(part)
        except RefusedError as error:
            if part != "rates" or error.code != "unknown-route":
                raise
            answers[part] = None
    return answers
