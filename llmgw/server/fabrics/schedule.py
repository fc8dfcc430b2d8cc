"""Whom to ask next, and when: one port of each target, another if it fails, and each in its turn. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from llmgw.server.fabrics.usable_ports import PortAt

SOON_S = 2.0
"""What is new is asked within so many seconds: not all that a starting server finds at once."""
AGAIN_S = 5.0
"""After a failure another port is asked so much later."""
ATTEMPTS_MAX = 3
"""So many ports are asked before the target waits for its next turn."""
JITTER = 0.1
"""Turns are up to this part of the interval early or late, so that fabrics are not all asked together."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Turn:
    due: float
    asking: PortAt | None = None
    failed: list[PortAt] = field(default_factory=list)


class Schedule(Generic[Key]):
    """One kind of question, put to each target every `interval_s` seconds. `random` gives numbers from 0 to 1."""

    def __init__(self, interval_s: float, random: Callable[[], float]) -> None:
        self.interval_s = interval_s
        self._random = random
        self._turns: dict[Key, _Turn] = {}
        self._failed_at: dict[str, float] = {}

    def due(self, now: float, targets: Mapping[Key, Sequence[PortAt]]) -> list[tuple[Key, PortAt]]:
        """The questions to put now; each is under way until `answered`. Targets that are gone are forgotten."""
        for key in [key for key, turn in self._turns.items() if key not in targets and turn.asking is None]:
            del self._turns[key]
        found = []
        for key, ports in targets.items():
            turn = self._turns.get(key)
            if turn is None:
                turn = self._turns[key] = _Turn(now + min(SOON_S, self.interval_s) * self._random())
            if turn.asking is not None or turn.due > now or not ports:
                continue
            port = self._choose(turn, ports, now)
            if port is None:
                self._wait(turn, now)
                continue
            turn.asking = port
            found.append((key, port))
        return found

    def answered(self, key: Key, now: float, *, well: bool) -> None:
        """The question has ended. Not well: another port is asked soon, up to `ATTEMPTS_MAX` of them."""
        turn = self._turns.get(key)
        if turn is None or turn.asking is None:
            return
        port, turn.asking = turn.asking, None
        if well:
            self._failed_at.pop(port.node, None)
            self._wait(turn, now)
            return
        self._failed_at[port.node] = now
        turn.failed.append(port)
        turn.due = now + min(AGAIN_S, self.interval_s)
        if len(turn.failed) >= ATTEMPTS_MAX:
            self._wait(turn, now)

    def _choose(self, turn: _Turn, ports: Sequence[PortAt], now: float) -> PortAt | None:
        """Any port of a node that has not failed lately; of this turn's failures, other nodes first."""
        left = [port for port in ports if port not in turn.failed]
        if not left:
            return None
        tried = {port.node for port in turn.failed}

        def rank(port: PortAt) -> tuple[bool, bool]:
            lately = now - self._failed_at.get(port.node, float("-inf")) < 3 * self.interval_s
            return port.node in tried, lately

        best = min(map(rank, left))
        equal = [port for port in left if rank(port) == best]
        return equal[min(len(equal) - 1, int(self._random() * len(equal)))]

    def _wait(self, turn: _Turn, now: float) -> None:
        turn.failed = []
        turn.due = now + self.interval_s * (1 + JITTER * (2 * self._random() - 1))
