"""Names for a shell that completes a word: of the server that `ctl` would ask, within a second, or none.

A shell wants neither sentences nor waiting: whatever goes wrong, there are no names.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PATIENCE_S = 1.0
NAMES_MAX = 500


def node_names(incomplete: str) -> list[str]:
    """Node ids."""
    return _beginning(incomplete, (str(node["node_id"]) for node in _asked("nodes")))


def replica_names(incomplete: str) -> list[str]:
    """Replica ids."""
    return _beginning(incomplete, (str(replica["replica_id"]) for replica in _asked("replicas")))


def model_names(incomplete: str) -> list[str]:
    """Models that have profiles."""
    return _beginning(incomplete, (str(model["name"]) for model in _asked("models") if model["profiles"]))


def every_model_name(incomplete: str) -> list[str]:
    """Models, also those of static endpoints alone."""
    return _beginning(incomplete, (str(model["name"]) for model in _asked("models")))


def key_names(incomplete: str) -> list[str]:
    """Names of API keys."""
    return _beginning(incomplete, (str(key["name"]) for key in _asked("keys")))


def fabric_names(incomplete: str) -> list[str]:
    """Fabrics as operators call them."""
    return _beginning(incomplete, (str(fabric["name"]) for fabric in _asked("fabrics")))


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})[:NAMES_MAX]


def _asked(path: str) -> list[dict[str, Any]]:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(Exception):
        from llmgw.cli.ctl.client import AdminClient
        from llmgw.cli.ctl.find import Wanted, find_server

        target = find_server(Wanted(), os.environ, Path.cwd(), Path.home())
        with AdminClient(target, patience_s=PATIENCE_S) as api:
            answer = api.get(path)
            return answer if isinstance(answer, list) else []
    return []
