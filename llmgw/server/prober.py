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
# What an engine says is what a model's author wrote: its answers end somewhere, whatever they are.
ANSWER_BYTES_MAX = 4 * 1024 * 1024


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
            status, _ = await self._exchange(
                client, check.method, _url(endpoint, check.path), headers, check.body
            )
            works = status < 500
        except (httpx.HTTPError, TimeoutError) as error:
            works = False
            log.info("a probe was not answered", replica=endpoint.id, error=type(error).__name__)
        self._hub.probed(endpoint.id, works, asked_at)

    async def _read_counters(self, client: httpx.AsyncClient, endpoint: RouteEndpoint, replica: Replica) -> None:
        """Progress is seen when the engine's own counters have moved since the last look."""
        url = _url(endpoint, "/metrics")
        try:
            status, body = await self._exchange(client, "GET", url, _authorization(endpoint))
            if status != 200:
                return
            total = counters_sum(body.decode("utf-8", "replace"), adapter(replica.engine).progress_counters)
        except (httpx.HTTPError, TimeoutError, ValueError):
            return  # no counters are no proof of anything
        if total is not None and replica.counters is not None and total > replica.counters:
            self._hub.progressed(replica.replica_id)
        replica.counters = total

    async def _exchange(
        self, client: httpx.AsyncClient, method: str, url: str, headers: dict[str, str], body: bytes | None = None
    ) -> tuple[int, bytes]:
        """(status, body as far as it is kept), in a probe's time. Raises httpx.HTTPError, TimeoutError."""
        said = bytearray()
        # The client's own limits are per read: one that drips bytes would keep a place for ever.
        async with (
            asyncio.timeout(self._hub.settings.probe_timeout_s),
            client.stream(method, url, content=body, headers=headers) as answer,
        ):
            async for part in answer.aiter_bytes():
                said += part
                if len(said) > ANSWER_BYTES_MAX:
                    break
            return answer.status_code, bytes(said[:ANSWER_BYTES_MAX])


def counters_sum(text: str, names: tuple[str, ...]) -> float | None:
    """The sum of all series of these counters in a Prometheus exposition, or None when there are none."""
    found = samples(text, names)
    return sum(found) if found else None


def _url(endpoint: RouteEndpoint, path: str) -> str:
    return f"http://{join_host_port(endpoint.host, endpoint.port)}{path}"


def _authorization(endpoint: RouteEndpoint) -> dict[str, str]:
    return {} if endpoint.api_key is None else {"authorization": f"Bearer {endpoint.api_key}"}
