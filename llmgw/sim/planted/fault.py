"""One planted fault: how it is brought about, and which finding must tell of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from llmgw.sim.planted.site import Site


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`name` says for people what was done; `check` and `where` are what the finding must have.

    `before` plants it in files before anything runs, `running` in the fleet that serves; some need both.
    """

    name: str
    check: str
    where: str
    """Must stand in the finding's `where` or `what`."""
    before: Callable[[Site], None] | None = None
    running: Callable[[Site], Awaitable[None]] | None = None

    def told_by(self, finding: dict[str, Any]) -> bool:
        """Whether this finding, as the admin API has it, is about this fault."""
        return bool(
            finding["check"] == self.check and (self.where in finding["where"] or self.where in finding["what"])
        )
