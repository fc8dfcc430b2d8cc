"""What models do, beside what the catalog says that they should stay below; and the task that looks at it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from llmgw.config.catalog import Catalog
from llmgw.fleet.model import Fleet, Replica, ReplicaState
from llmgw.server.figures import fresh_figure
from llmgw.server.limits.watch import Key, Reading
from llmgw.server.recent.rates import RecentRates

if TYPE_CHECKING:
    from llmgw.server.hub import Hub

LOOK_EVERY_S = 1.0
REQUESTS_MIN = 20
"""Of fewer requests the 95th percentile is the slowest one, which may be anything."""


async def watch_limits(hub: Hub) -> None:
    """Look at all limits every second, until cancelled."""
    while True:
        hub.look_at_limits()
        await asyncio.sleep(LOOK_EVERY_S)


def limit_readings(
    fleet: Fleet, catalog: Catalog, rates: RecentRates, busy: Mapping[str, int], now: float
) -> dict[Key, Reading]:
    """Every limit's reading. `busy` are the requests that each model has running or waiting, at the gateway."""
    found: dict[Key, Reading] = {}
    by_model = ready_replicas(fleet)
    for model in catalog.models:
        limits = model.limits
        for replica in by_model.get(model.name, []):
            assert replica.leader is not None
            figure = fresh_figure(replica.leader, now)
            if limits.waiting is not None:
                waiting = figure.waiting if figure is not None else None
                found[Key(model.name, "waiting", replica.replica_id)] = Reading(limits.waiting, waiting)
            if limits.kv_cache is not None:
                used = figure.cache_used if figure is not None else None
                found[Key(model.name, "kv_cache", replica.replica_id)] = Reading(limits.kv_cache, used)
        if limits.ttft_p95 is not None:
            value, requests = rates.first_byte_p95(model.name, now)
            if value is None and fleet.routers and not busy.get(model.name):
                value = 0.0  # nobody asks, so nobody waits; while somebody does, nothing is known
            found[Key(model.name, "ttft_p95")] = Reading(limits.ttft_p95, value, requests >= REQUESTS_MIN)
    return found


def ready_replicas(fleet: Fleet) -> dict[str, list[Replica]]:
    """Model → its replicas that are ready, by their ids."""
    found: dict[str, list[Replica]] = {}
    for replica in sorted(fleet.replicas.values(), key=lambda replica: replica.replica_id):
        if replica.state is ReplicaState.READY and replica.leader is not None:
            found.setdefault(replica.model, []).append(replica)
    return found
