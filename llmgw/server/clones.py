"""Machines that claim the identity of another one, as far as they were refused lately."""

from __future__ import annotations

from dataclasses import dataclass

CLONE_SHOWN_S = 300.0
"""A clone's agent tries for ever: one that was not heard for so long has been put right."""


@dataclass(frozen=True, slots=True)
class _Clone:
    sentence: str
    at: float


class Clones:
    """Node id → the cloned machine that was last refused. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._clones: dict[str, _Clone] = {}

    def refused(self, node_id: str, sentence: str, now: float) -> bool:
        """A clone was refused with this sentence; True when that is news."""
        news = self.sentence(node_id, now) is None
        self._clones[node_id] = _Clone(sentence, now)
        return news

    def sentence(self, node_id: str, now: float) -> str | None:
        """Why there is a clone of this node, or None when none is heard."""
        clone = self._clones.get(node_id)
        return clone.sentence if clone is not None and now - clone.at < CLONE_SHOWN_S else None

    def forget(self, node_id: str) -> None:
        """Another machine has the name now."""
        self._clones.pop(node_id, None)
