"""Nodes whose registrations were refused lately, and why: machines that claim another's identity, and agents of a
version that this server does not understand."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN_S = 300.0
"""A refused agent tries for ever: one that was not heard for so long has been put right."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    sentence: str
    at: float


class Refusals:
    """Node id → the last refusal of one kind. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._refusals: dict[str, _Refusal] = {}

    def refused(self, node_id: str, sentence: str, now: float) -> bool:
        """A registration was refused with this sentence; True when that is news."""
        news = self.sentence(node_id, now) is None
        self._refusals[node_id] = _Refusal(sentence, now)
        return news

    def sentence(self, node_id: str, now: float) -> str | None:
        """Why the last one was refused, or None when none is heard."""
        refusal = self._refusals.get(node_id)
        return refusal.sentence if refusal is not None and now - refusal.at < SHOWN_S else None

    def forget(self, node_id: str) -> None:
        """A registration under this name was taken, or the node is gone."""
        self._refusals.pop(node_id, None)
