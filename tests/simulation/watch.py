"""What all checks share: the count, the first violation, and what was said, kept a second time by other code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass
class Speaker:
    """Who registered last for a node, at the present server."""

    session: str
    life: tuple[str, str, float, int]
    heard: float
    spoke_at: float
    """When it was heard; `heard` is later by what the server stood still since."""
    registered_at: float


@dataclass
class Said:
    """A shard as its agent last said it."""

    node_id: str
    version: int
    phase: str
    http_port: int | None


@dataclass
class Turn:
    """How it stood before the hub decided."""

    ready: Counter[tuple[str, str]] = field(default_factory=Counter)
    ready_ids: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Replica id → (model, profile)."""
    acted: bool = False


class Watch:
    """Raises nothing, but keeps the first violation and stops the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.checks: Counter[str] = Counter()
        """How often each was looked at."""
        self.violations: list[str] = []
        self._speakers: dict[str, Speaker] = {}
        self._let_go: set[str] = set()
        """Replicas of which a node that registered did not name its part."""
        """By node, since the present server started."""
        self._said: dict[str, Said] = {}
        """By shard id, since the present server started."""
        self._sent_in: dict[str, str | None] = {}
        """Shard id → the session that its start was sent in."""
        self._sent_at: dict[str, float] = {}
        """Shard id → when, in virtual seconds; later by what the server stood still since."""
        self._draining_since: dict[str, float] = {}
        self._turn = Turn()
        self._touched = True
        """True when something was said or decided since the routes were last looked at."""

    def expect(self, holds: bool, invariant: str, sentence: str) -> None:
        """Count a check; when it does not hold, the run ends with the sentence."""
        self.checks[invariant] += 1
        if not holds:
            text = f"invariant {invariant}: {sentence}"
            self._world.trace.say("VIOLATION", text)
            self.violations.append(text)
            self._world.stop()

    def crashed(self, where: str, error: BaseException) -> None:
        """Nothing may raise."""
        self.expect(False, "no exceptions", f"{where} raised {error!r}")
