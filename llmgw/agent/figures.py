"""Reads what a ready engine's own metrics say of its load, every two seconds, for the heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx

from llmgw.config.addresses import join_host_port
from llmgw.config.no_tls import no_tls
from llmgw.engines.figures import FigureNames, read_figures
from llmgw.messages.agent import EngineFigures

READ_EVERY_S = 2.0
READ_TIMEOUT_S = 2.0
"""A core that is busy answers late; figures that are older than this are not worth having."""
METRICS_BYTES_MAX = 4 * 1024 * 1024


async def watch_figures(
    address: str,
    port: int,
    key: str | None,
    names: FigureNames,
    show: Callable[[EngineFigures | None], None],
    *,
    every_s: float = READ_EVERY_S,
) -> None:
    """Read until cancelled; `show` gets each reading, or None where there is none. Raises nothing else."""
    if names == FigureNames():
        return
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    url = f"http://{join_host_port(address, port)}/metrics"
    async with httpx.AsyncClient(
        verify=no_tls(), trust_env=False, follow_redirects=False, headers=headers
    ) as client:
        while True:
            show(await _read(client, url, names))
            await asyncio.sleep(every_s)


async def _read(client: httpx.AsyncClient, url: str, names: FigureNames) -> EngineFigures | None:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S), client.stream("GET", url) as answer:
            if answer.status_code != 200:
                return None
            text = bytearray()
            async for piece in answer.aiter_bytes():
                text += piece
                if len(text) > METRICS_BYTES_MAX:
                    return None
        return read_figures(text.decode("utf-8", "replace"), names)
    except (TimeoutError, httpx.HTTPError, ValueError):
        return None
