"""The second witness: a one-token request to leaders on nodes whose agent is silent."""

from __future__ import annotations

import asyncio

import httpx
import msgspec
import structlog

from llmgw.config.addresses import join_host_port
from llmgw.fleet.liveness import probes_wanted
from llmgw.fleet.model import InheritedRoute
from llmgw.fleet.routes import endpoint_of
from llmgw.messages.routes import RouteEndpoint
from llmgw.server.hub import Hub

log = structlog.get_logger("prober")

LOOK_S = 0.5
PROBES_MAX = 32

# What proves life, by the model's task: the smallest request that the engine's core must work for.
_BODIES: dict[str, tuple[str, dict[str, object]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
    "completion": ("/v1/completions", {"prompt": "hi", "max_tokens": 1}),
    "embedding": ("/v1/embeddings", {"input": "hi"}),
    "rerank": ("/v1/rerank", {"query": "hi", "documents": ["hi"]}),
    "score": ("/v1/score", {"text_1": "hi", "text_2": "hi"}),
}


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
        for replica in probes_wanted(fleet, now, self._hub.settings):
            endpoint = endpoint_of(fleet, replica)
            if endpoint is not None:
                replica.probed_at = now
                self._ask(client, endpoint, replica.model)
        for inherited in self._unconfirmed(now):
            self._ask(client, inherited.endpoint, inherited.model)

    def _unconfirmed(self, now: float) -> list[InheritedRoute]:
        stale_s = self._hub.settings.lost_after_s / 4
        return [item for item in self._hub.fleet.inherited.values() if now - item.alive_at > stale_s]

    def _ask(self, client: httpx.AsyncClient, endpoint: RouteEndpoint, model: str) -> None:
        if endpoint.id in self._running or len(self._running) >= PROBES_MAX:
            return
        task = asyncio.create_task(self._probe(client, endpoint, model))
        self._running[endpoint.id] = task
        task.add_done_callback(lambda _: self._running.pop(endpoint.id, None))

    async def _probe(self, client: httpx.AsyncClient, endpoint: RouteEndpoint, model: str) -> None:
        found = self._hub.catalog.by_name.get(model)
        path, body = _BODIES.get(found.task if found is not None else "chat", _BODIES["chat"])
        headers = {"content-type": "application/json"}
        if endpoint.api_key is not None:
            headers["authorization"] = f"Bearer {endpoint.api_key}"
        url = f"http://{join_host_port(endpoint.host, endpoint.port)}{path}"
        try:
            answer = await client.post(
                url, content=msgspec.json.encode({"model": model, **body}), headers=headers
            )
            works = answer.status_code < 500
        except httpx.HTTPError as error:
            works = False
            log.info("a probe was not answered", replica=endpoint.id, url=url, error=type(error).__name__)
        self._hub.probed(endpoint.id, works)
