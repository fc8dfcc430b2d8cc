"""Divides the keys' limits among the routers, by what each has to do for each key. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from llmgw.messages.routes import KeyDemand, KeyRoute, KeyShare
from llmgw.server.shares import split

FADES = 0.85
"""What is left of a router's demand at its next telemetry, half a second later: it halves in about two seconds."""
FORGOTTEN = 0.01
FINE = 1000
"""Rates are divided in thousandths: a part of 0.5 a minute is one request in two minutes, and no part is none."""


class KeyShares:
    """What every router is asked for, by key, and the parts that follow."""

    def __init__(self) -> None:
        self._limits: dict[str, KeyRoute] = {}
        """Those of the keys that have any."""
        self._requests: dict[str, dict[str, float]] = {}
        """Router → key → requests, lately, the refused ones included."""
        self._tokens: dict[str, dict[str, float]] = {}
        self._running: dict[str, dict[str, int]] = {}

    def set_limits(self, keys: Iterable[KeyRoute]) -> None:
        """These are the keys from now on."""
        self._limits = {
            key.id: key
            for key in keys
            if (key.requests_per_minute, key.tokens_per_minute, key.concurrency) != (None, None, None)
        }

    def told(self, router_id: str, demand: Mapping[str, KeyDemand]) -> None:
        """A router's telemetry: of keys that are missing it has had nothing to do, and runs nothing."""
        self._requests[router_id] = _faded(self._requests.get(router_id, {}), demand, "requests")
        self._tokens[router_id] = _faded(self._tokens.get(router_id, {}), demand, "tokens")
        self._running[router_id] = {key: each.running for key, each in demand.items() if each.running}

    def forget(self, router_id: str) -> None:
        """A router is gone."""
        for told in (self._requests, self._tokens, self._running):
            told.pop(router_id, None)

    def parts(self, routers: Iterable[str]) -> dict[str, dict[str, KeyShare]]:
        """Router → key → its part, of every key with limits that any of these routers has lately had to do with.

        A key that is missing is divided evenly, which every router does by itself.
        """
        routers = list(routers)
        parts: dict[str, dict[str, KeyShare]] = {router: {} for router in routers}
        busy = {
            key for router in routers for key in (*self._requests.get(router, ()), *self._running.get(router, ()))
        }
        for key_id in busy & self._limits.keys():
            limits = self._limits[key_id]
            requests = {router: self._requests.get(router, {}).get(key_id, 0.0) for router in routers}
            tokens = {router: self._tokens.get(router, {}).get(key_id, 0.0) for router in routers}
            running = {router: self._running.get(router, {}).get(key_id, 0) for router in routers}
            by_rate = _rates(limits.requests_per_minute, requests)
            # A client whose tokens are spent is refused and takes none: what it asks for counts.
            by_tokens = _rates(limits.tokens_per_minute, tokens if not any(requests.values()) else requests)
            by_running = _running_parts(limits.concurrency, requests, running)
            for router in routers:
                parts[router][key_id] = KeyShare(
                    requests_per_minute=by_rate.get(router),
                    tokens_per_minute=by_tokens.get(router),
                    concurrency=by_running.get(router),
                )
        return parts


def _faded(before: Mapping[str, float], demand: Mapping[str, KeyDemand], field: str) -> dict[str, float]:
    now = {key: value * FADES for key, value in before.items() if value * FADES > FORGOTTEN}
    for key, each in demand.items():
        added = getattr(each, field)
        if added:
            now[key] = now.get(key, 0.0) + added
    return now


def _rates(limit: int | None, demand: Mapping[str, float]) -> dict[str, float]:
    if limit is None:
        return {}
    return {router: part / FINE for router, part in split(limit * FINE, demand).items()}


def _running_parts(
    limit: int | None, requests: Mapping[str, float], running: Mapping[str, int]
) -> dict[str, int]:
    """Parts by demand, but so that those that grow wait for those that shrink to have ended what they run."""
    if limit is None:
        return {}
    parts = split(limit, {router: requests[router] + running[router] for router in running})
    over = sum(max(0, running[router] - part) for router, part in parts.items())
    if not over:
        return parts
    for router in sorted(parts, key=lambda name: running[name] - parts[name]):  # those with most room first
        taken = min(over, max(0, parts[router] - max(1, running[router])))
        parts[router] -= taken
        over -= taken
    return parts
