"""Divides the keys' limits among the routers, by what each has to do for each key. Pure: no clock, no I/O.

A rate is a bucket that the routers have in parts. Each tells what is left in its part; here they are seen as one,
and what is left is spread by the parts again: it moves from where it lies to where it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from msgspec.structs import replace

from llmgw.messages.routes import KeyDemand, KeyRoute, KeyShare
from llmgw.server.shares import EVEN_PART, split

FADES = 0.85
"""What is left of a router's demand at its next telemetry, half a second later: half of it after 2 s."""
FORGOTTEN = 0.01
QUIET_ROUNDS = 16
"""A key that no router was asked for since the last time is divided anew only in one of so many rounds: what was
used fills up by itself. Of ten thousand keys that are used within a minute few are used within half a second."""
FINE = 1000
"""Rates are divided in thousandths: a part of 0.5 a minute is one request in two minutes, and no part is none."""


@dataclass(slots=True)
class _Told:
    """What one router has told, and was told, of the keys with limits."""

    demand: dict[str, float] = field(default_factory=dict)
    """Requests lately, the refused ones included."""
    last: dict[str, KeyDemand] = field(default_factory=dict)
    """Its last telemetry, with what was moved since."""
    parts: dict[str, KeyShare] = field(default_factory=dict)
    """Of the keys that it has to do with."""
    moved: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Requests and tokens moved to it, in all since it greeted; kept while the key has limits."""


class KeyShares:
    """What every router is asked for, by key, and the parts that follow."""

    def __init__(self) -> None:
        self._limits: dict[str, KeyRoute] = {}
        """Those of the keys that have any."""
        self._routers: dict[str, _Told] = {}
        self._asked: set[str] = set()
        """Keys that some router was asked for since the last division."""
        self._round = 0

    def set_limits(self, keys: Iterable[KeyRoute]) -> None:
        """These are the keys from now on."""
        before = self._limits
        self._limits = {
            key.id: key
            for key in keys
            if (key.requests_per_minute, key.tokens_per_minute, key.concurrency) != (None, None, None)
        }
        for told in self._routers.values():
            # A part of another limit says nothing of this one.
            told.parts = {
                key_id: share
                for key_id, share in told.parts.items()
                if key_id in before and before[key_id] == self._limits.get(key_id)
            }
            told.moved = {key_id: moved for key_id, moved in told.moved.items() if key_id in self._limits}

    def told(self, router_id: str, demand: Mapping[str, KeyDemand]) -> None:
        """A router's telemetry: of keys that are missing it has had nothing to do, and its part is whole."""
        told = self._routers.setdefault(router_id, _Told())
        told.last = dict(demand)
        told.demand = {key: left for key, value in told.demand.items() if (left := value * FADES) > FORGOTTEN}
        for key_id, each in demand.items():
            if each.requests:
                told.demand[key_id] = told.demand.get(key_id, 0.0) + each.requests
                self._asked.add(key_id)

    def connected(self, router_id: str) -> dict[str, KeyShare]:
        """A router greets, and counts from now on what is moved to it. Returns the parts that it had."""
        told = self._routers.setdefault(router_id, _Told())
        told.moved = {}
        told.parts = {
            key_id: replace(share, requests_moved=0.0, tokens_moved=0.0) for key_id, share in told.parts.items()
        }
        return dict(told.parts)

    def forget(self, router_id: str) -> None:
        """A router is gone."""
        self._routers.pop(router_id, None)

    def divide(self, routers: Iterable[str]) -> dict[str, dict[str, KeyShare]]:
        """Router → key → its part from now on, of every key with limits that any of them has had to do with."""
        told = {router: self._routers.setdefault(router, _Told()) for router in routers}
        busy = {key for each in told.values() for key in (*each.demand, *each.last)} & self._limits.keys()
        parts: dict[str, dict[str, KeyShare]] = {router: {} for router in told}
        self._round += 1
        for key_id in busy:
            if key_id not in self._asked and self._may_rest(key_id, told.values()):
                for router, each in told.items():
                    parts[router][key_id] = each.parts[key_id]
                continue
            for router, share in self._divide_key(key_id, told).items():
                parts[router][key_id] = share
        self._asked.clear()
        for router, each in told.items():
            each.parts = parts[router]
            for key_id, share in each.parts.items():
                each.moved[key_id] = share.requests_moved, share.tokens_moved
        return {router: dict(each.parts) for router, each in told.items()}

    def _may_rest(self, key_id: str, told: Iterable[_Told]) -> bool:
        """Every router has a part of this key's limits, and it is not its turn."""
        if (crc32(key_id.encode()) + self._round) % QUIET_ROUNDS == 0:
            return False
        return all(key_id in each.parts for each in told)

    def _divide_key(self, key_id: str, told: Mapping[str, _Told]) -> dict[str, KeyShare]:
        limits = self._limits[key_id]
        demand = {router: each.demand.get(key_id, 0.0) for router, each in told.items()}
        last = {router: each.last.get(key_id, _NOTHING) for router, each in told.items()}
        had = {router: each.parts.get(key_id, _EVEN) for router, each in told.items()}
        moved = {router: each.moved.get(key_id, (0.0, 0.0)) for router, each in told.items()}
        requests = _rate(
            limits.requests_per_minute,
            demand,
            {router: share.requests_per_minute for router, share in had.items()},
            {router: each.requests_left for router, each in last.items()},
        )
        tokens = _rate(
            limits.tokens_per_minute,
            demand,
            {router: share.tokens_per_minute for router, share in had.items()},
            {router: each.tokens_left for router, each in last.items()},
        )
        running = _at_a_time(limits.concurrency, demand, last)
        shares = {}
        for router, each in told.items():
            # Should this be asked again before the next telemetry, nothing is moved twice.
            each.last[key_id] = replace(
                last[router], requests_left=requests[router].left, tokens_left=tokens[router].left
            )
            shares[router] = KeyShare(
                requests_per_minute=requests[router].part,
                requests_moved=moved[router][0] + requests[router].moved,
                tokens_per_minute=tokens[router].part,
                tokens_moved=moved[router][1] + tokens[router].moved,
                concurrency=running[router],
            )
        return shares


_NOTHING = KeyDemand()
_EVEN = KeyShare()


class _Part(NamedTuple):
    """One router's part of a rate: what was moved to it now, and what its bucket has left then."""

    part: float | None
    moved: float
    left: float | None


def _rate(
    limit: int | None,
    demand: Mapping[str, float],
    had: Mapping[str, float | None],
    left: Mapping[str, float | None],
) -> dict[str, _Part]:
    """Each router's new part. `had` are those until now, None: an even one; `left` is what the bucket holds,
    None: it is full."""
    if limit is None:
        return dict.fromkeys(had, _Part(None, 0.0, None))
    parts = {router: part / FINE for router, part in split(limit * FINE, demand).items()}
    holds: dict[str, float] = {}
    for router, part in had.items():
        told = left[router]
        holds[router] = told if told is not None else part if part is not None else limit / len(had)
    share = min(limit, sum(holds.values())) / limit
    moves = {router: parts[router] * share - held for router, held in holds.items()}
    # More may be there than the limit while it is new, or a router is: nothing is moved that is not there.
    surplus = -sum(moves.values()) / len(moves)
    return {
        router: _Part(part, move := moves[router] + surplus, min(part, holds[router] + move))
        for router, part in parts.items()
    }


def _at_a_time(
    limit: int | None, demand: Mapping[str, float], last: Mapping[str, KeyDemand]
) -> dict[str, int | None]:
    """Parts by demand, but so that those that grow wait for those that shrink to have ended what they run."""
    if limit is None:
        return dict.fromkeys(last)
    running = {router: each.running for router, each in last.items()}
    wanted = {router: demand[router] + running[router] for router in running}
    if limit < EVEN_PART * len(running):
        # The even part of each is below one. Those that have nothing to do may use it all the same, and it is not
        # withheld from the others: a client's few connections may all be with one router.
        busy = {router: wanted[router] for router, each in last.items() if each.running or each.requests}
        wanted = busy or wanted
    parts = split(limit, wanted)
    over = sum(max(0, running[router] - part) for router, part in parts.items())
    for router in sorted(parts, key=lambda name: running[name] - parts[name]):  # those with most room first
        taken = min(over, max(0, parts[router] - max(1, running[router])))
        parts[router] -= taken
        over -= taken
    return {router: parts.get(router, 1) for router in running}
