"""What the hub needs of the world and is handed: clocks, ids, and a memory that outlives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from llmgw.fleet.events import Event
from llmgw.fleet.lives import Life
from llmgw.fleet.model import Node


@dataclass(frozen=True, slots=True)
class Clock:
    """Two clocks: `monotonic` decides, `wall` is written into history."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]


class Ids(Protocol):
    """Where ids come from."""

    def session(self) -> str: ...

    def replica(self, model: str) -> str: ...

    def request(self) -> str: ...


class Memory(Protocol):
    """What the hub writes down. Calls return at once; the store keeps them in order."""

    def record(self, events: Iterable[Event], at: float) -> None: ...

    def node_registered(self, node: Node, life: Life, at: float) -> None: ...

    def fabrics_changed(self, node: Node, at: float) -> None: ...

    async def stored(self, timeout_s: float) -> bool:
        """True once everything written down before is safe; False when it is not within `timeout_s`."""
        ...
