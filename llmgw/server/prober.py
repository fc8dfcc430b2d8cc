"""The second witness: a one-token request to leaders on nodes whose agent is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx
import structlog

from llmgw.config.addresses import join_host_port
from llmgw.engines.figures import samples
from llmgw.engines.probes import TASKS_PROBED, one_token_check
from llmgw.engines.registry import adapter
from llmgw.fleet.health import counters_wanted, probes_wanted
from llmgw.fleet.model import InheritedRoute, Replica
from llmgw.fleet.routes import leader_of
from llmgw.messages.routes import RouteEndpoint
from llmgw.server.hub import Hub

log = structlog.get_logger("prober")

LOOK_S = 0.5
PROBES_MAX = 32


class Prober:
    """Asks, a few at a time, and tells the hub who answered."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look for replicas to ask until cancelled."""
        # Proxy variables of the environment must not catch calls inside the fleet.
        async with httpx.AsyncClient(trust_env=False, timeout=self._hub.settings.probe_timeout_s) as client:
            try:
                while True:
                    self._look(client)
                    await asyncio.sleep(LOOK_S)
            finally:
                for task in self._running.values():
                    task.cancel()

    def _look(self, client: httpx.AsyncClient) -> None:
        now = self._hub.clock.monotonic()
        fleet = self._hub.fleet
        for replica in counters_wanted(fleet, now, self._hub.settings):
            endpoint = leader_of(fleet, replica)
            if endpoint is not None:
                self._ask(f"{replica.replica_id} counters", self._read_counters(client, endpoint, replica))
        for replica in probes_wanted(fleet, now, self._hub.settings):
            endpoint = leader_of(fleet, replica)
            # One that finds no room now is asked at the next look, not an interval later.
            if endpoint is not None and self._ask(
                replica.replica_id, self._probe(client, endpoint, replica.model)
            ):
                replica.probed_at = now
        for inherited in self._unconfirmed(now):
            self._ask(inherited.endpoint.id, self._probe(client, inherited.endpoint, inherited.model))

    def _unconfirmed(self, now: float) -> list[InheritedRoute]:
        stale_s = self._hub.settings.lost_after_s / 4
        return [item for item in self._hub.fleet.inherited.values() if now - item.alive_at > stale_s]

    def _ask(self, key: str, work: Coroutine[Any, Any, None]) -> bool:
        """Begin the work; False when it is under way already, or too much is."""
        if key in self._running or len(self._running) >= PROBES_MAX:
            work.close()
            return False
        task = asyncio.create_task(work)
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))
        return True

    async def _probe(self, client: httpx.AsyncClient, endpoint: RouteEndpoint, model: str) -> None:
        found = self._hub.catalog.by_name.get(model)
        # Of a task that has no small request any answer is taken, a refusal included: the core gave it.
        task = found.task if found is not None and found.task in TASKS_PROBED else "chat"
        check = one_token_check(task, model)
        asked_at = self._hub.clock.monotonic()
        headers = {**check.headers, **_authorization(endpoint)}
        try:
            answer = await client.request(
                check.method, _url(endpoint, check.path), content=check.body, headers=headers
            )
            works = answer.status_code < 500
        except httpx.HTTPError as error:
            works = False
            log.info("a probe was not answered", replica=endpoint.id, error=type(error).__name__)
        self._hub.probed(endpoint.id, works, asked_at)

    async def _read_counters(self, client: httpx.AsyncClient, endpoint: RouteEndpoint, replica: Replica) -> None:
        """Progress is seen when the engine's own counters have moved since the last look."""
        try:
            answer = await client.get(_url(endpoint, "/metrics"), headers=_authorization(endpoint))
            answer.raise_for_status()
            total = counters_sum(answer.text, adapter(replica.engine).progress_counters)
        except (httpx.HTTPError, ValueError):
            return  # no counters are no proof of anything
        if total is not None and replica.counters is not None and total > replica.counters:
            self._hub.progressed(replica.replica_id)
        replica.counters = total


def counters_sum(text: str, names: tuple[str, ...]) -> float | None:
    """The sum of all series of these counters in a Prometheus exposition, or None when there are none."""
    found = samples(text, names)
    return sum(found) if found else None


def _url(endpoint: RouteEndpoint, path: str) -> str:
    return f"http://{join_host_port(endpoint.host, endpoint.port)}{path}"


def _authorization(endpoint: RouteEndpoint) -> dict[str, str]:
    return {} if endpoint.api_key is None else {"authorization": f"Bearer {endpoint.api_key}"}
