"""Decides when a limit is crossed and when that is over. Pure: readings and time are arguments.

Neither a single spike nor a value that swings about its limit is news: a limit is crossed once the value was
above it in every reading for `HELD_S`, and that is over once it was at most `CALM_SHARE` of it for as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

HELD_S = 30.0
CALM_SHARE = 0.9
GAP_S = 5.0
"""Between two looks that are further apart, nobody knows what was: what was held so far begins anew."""

Kind = Literal["waiting", "kv_cache", "ttft_p95"]


@dataclass(frozen=True, slots=True)
class Key:
    """What a limit is for: one of a model's, at one replica; `replica` is empty where it is for the model."""

    model: str
    kind: Kind
    replica: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """A value beside its limit. `value` is None while it is not known: then nothing begins, and nothing ends.

    `counts` is False for one that is made of too little to cross a limit; it can still end that.
    """

    limit: float
    value: float | None
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Crossing:
    """A limit that is crossed, with the value that was last known."""

    limit: float
    value: float


@dataclass(frozen=True, slots=True)
class Change:
    """A model's limit came to be crossed, at the first of its replicas, or is not any more, at the last."""

    model: str
    kind: Kind
    crossed: bool


@dataclass(slots=True)
class _State:
    limit: float
    value: float = 0.0
    crossed: bool = False
    above_since: float | None = None
    calm_since: float | None = None


class LimitWatch:
    """Fed with readings, about once a second. `now` is of a clock that never runs backwards."""

    def __init__(self) -> None:
        self._states: dict[Key, _State] = {}
        self._looked_at: float | None = None

    def look(self, readings: Mapping[Key, Reading], now: float) -> list[Change]:
        """Take every limit's reading; what is missing (a replica, a limit) is there no more."""
        before = {(key.model, key.kind) for key in self.crossings()}
        gap = self._looked_at is None or now - self._looked_at > GAP_S
        self._looked_at = now
        self._states = {key: state for key, state in self._states.items() if key in readings}
        for key, reading in readings.items():
            state = self._states.get(key)
            if state is None:
                state = self._states[key] = _State(reading.limit)
            if gap or state.limit != reading.limit:
                state.limit, state.above_since, state.calm_since = reading.limit, None, None
            _take(state, reading, now)
        after = {(key.model, key.kind) for key in self.crossings()}
        return [Change(*which, crossed=which in after) for which in sorted(before ^ after)]

    def crossings(self) -> dict[Key, Crossing]:
        """The limits that are crossed now, in the order of their keys' readings."""
        return dict(self._crossings())

    def _crossings(self) -> Iterator[tuple[Key, Crossing]]:
        for key, state in self._states.items():
            if state.crossed:
                yield key, Crossing(state.limit, state.value)


def _take(state: _State, reading: Reading, now: float) -> None:
    value = reading.value
    if value is None:
        state.above_since = state.calm_since = None
        return
    state.value = value
    above, calm = value > state.limit, value <= CALM_SHARE * state.limit
    state.above_since = (now if state.above_since is None else state.above_since) if above else None
    state.calm_since = (now if state.calm_since is None else state.calm_since) if calm else None
    if not reading.counts:
        state.above_since = None
    if state.above_since is not None and now - state.above_since >= HELD_S:
        state.crossed = True
    elif state.calm_since is not None and now - state.calm_since >= HELD_S:
        state.crossed = False
