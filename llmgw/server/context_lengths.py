"""Asks engines how many tokens a prompt and its answer may have together, so that clients find it in /v1/models.

An engine says so in its own list of models. One that does not answer, or does not say, is asked again later.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import structlog

from llmgw.config.addresses import join_host_port
from llmgw.messages.routes import ModelRoute, RouteEndpoint
from llmgw.server.hub import Hub

log = structlog.get_logger("context lengths")

LOOK_S = 1.0
TIMEOUT_S = 5.0
ASKED_AGAIN_S = 60.0
ASKED_AT_A_TIME_MAX = 8
LIST_BYTES_MAX = 1024 * 1024


class ContextLengths:
    """Keeps `hub.context_lengths`: one entry for each endpoint of the table whose engine said it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._asked_at: dict[str, float] = {}
        """When each endpoint that told nothing was asked, on the monotonic clock."""

    async def run(self) -> None:
        """Look for endpoints to ask until cancelled."""
        async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as client:
            while True:
                await self.look(client)
                await asyncio.sleep(LOOK_S)

    async def look(self, client: httpx.AsyncClient) -> None:
        """Forget endpoints that are gone, and ask some that are new."""
        table = self._hub.table
        if table is None:
            return
        endpoints = {endpoint.id: (model, endpoint) for model in table.models for endpoint in model.endpoints}
        known = self._hub.context_lengths
        for gone in (known.keys() | self._asked_at.keys()) - endpoints.keys():
            known.pop(gone, None)
            self._asked_at.pop(gone, None)
        now = self._hub.clock.monotonic()
        due = [
            (model, endpoint)
            for id, (model, endpoint) in endpoints.items()
            if id not in known and now - self._asked_at.get(id, -ASKED_AGAIN_S) >= ASKED_AGAIN_S
        ]
        await asyncio.gather(*(self._ask(client, *each) for each in due[:ASKED_AT_A_TIME_MAX]))

    async def _ask(self, client: httpx.AsyncClient, model: ModelRoute, endpoint: RouteEndpoint) -> None:
        self._asked_at[endpoint.id] = self._hub.clock.monotonic()
        scheme = "https" if endpoint.tls else "http"
        url = f"{scheme}://{join_host_port(endpoint.host, endpoint.port)}{endpoint.base_path}/v1/models"
        headers = {} if endpoint.api_key is None else {"authorization": f"Bearer {endpoint.api_key}"}
        body = bytearray()
        try:
            async with asyncio.timeout(TIMEOUT_S), client.stream("GET", url, headers=headers) as answer:
                answer.raise_for_status()
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > LIST_BYTES_MAX:
                        return
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
            return  # it need not answer this; whether it works is for others to say
        length = context_length(bytes(body), {endpoint.upstream_model or model.name, *model.aliases})
        if length is not None:
            log.info("context length", endpoint=endpoint.id, tokens=length)
            self._hub.context_lengths[endpoint.id] = length
            self._hub.changed.set()


def context_length(body: bytes, names: set[str]) -> int | None:
    """The context length in an engine's list of models, of the entry with one of the names or of the only one.

    `max_model_len` is vLLM's and SGLang's field, `meta.n_ctx` llama.cpp's, of one slot. None: it is not said.
    """
    try:
        told: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    data = told.get("data") if isinstance(told, dict) else None
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    named = [entry for entry in entries if entry.get("id") in names] or (entries if len(entries) == 1 else [])
    for entry in named:
        meta = entry.get("meta")
        for value in (entry.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None):
            if type(value) is int and 0 < value < 2**53:
                return value
    return None
