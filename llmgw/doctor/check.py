"""What a check is, and the node that it looks at."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from llmgw.config.agent import AgentConfig
from llmgw.hardware.interfaces import AddressError, choose_address
from llmgw.messages.findings import Finding, Severity

LIMIT_S = 5.0


@dataclass(frozen=True)
class Node:
    """One node as its configuration describes it. `now` is the wall clock, in seconds since the epoch."""

    config: AgentConfig
    now: Callable[[], float] = field(default=time.time)

    def address(self) -> str | None:
        """The node's management address; None when there is none, which a check of its own says. May block."""
        try:
            return choose_address(self.config)
        except AddressError:
            return None

    def finding(
        self, check: str, severity: Severity, where: str, what: str, *, why: str = "", remedy: str = ""
    ) -> Finding:
        """A finding on this node: `where` gets the node id in front, as everywhere in the fleet."""
        where = f"{self.config.node_id} {where}"
        return Finding(check=check, severity=severity, where=where, what=what, why=why, remedy=remedy)


@dataclass(frozen=True)
class Check:
    """One check. `name` is stable, `run` looks (it may block, and may be run in a thread of its own) and gives
    what is wrong, `limit_s` is how long it may take before that itself is the finding."""

    name: str
    run: Callable[[Node], list[Finding]]
    limit_s: float = LIMIT_S
