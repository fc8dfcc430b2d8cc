"""Reads what a ready engine's own metrics say of its load, every two seconds, for the heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx

from llmgw.config.addresses import join_host_port
from llmgw.engines.figures import FigureHistory, FigureNames, read_counters, read_figures
from llmgw.messages.agent import EngineFigures

READ_EVERY_S = 2.0
READ_TIMEOUT_S = 2.0
"""A core that is busy answers late; figures that are older than this are not worth having."""
METRICS_BYTES_MAX = 4 * 1024 * 1024
FAILED_READINGS = 5
"""So many in a row are told: one that is late may be anything."""

Show = Callable[[EngineFigures | None, str | None], None]
"""Gets each reading, or None where there is none; and why, once there has been none several times in a row."""


class _Unread(Exception):
    """There is no reading. The message reads on from "its metrics"."""


async def watch_figures(
    address: str,
    port: int,
    key: str | None,
    names: FigureNames,
    show: Show,
    *,
    every_s: float = READ_EVERY_S,
) -> None:
    """Read until cancelled. Raises nothing else."""
    if names == FigureNames():
        return
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    url = f"http://{join_host_port(address, port)}/metrics"
    history = FigureHistory()
    failed = 0
    async with httpx.AsyncClient(trust_env=False, follow_redirects=False, headers=headers) as client:
        while True:
            try:
                figures = await _read(client, url, names, history)
            except _Unread as unread:
                history.forget()
                failed += 1
                show(None, str(unread) if failed >= FAILED_READINGS else None)
            else:
                failed = 0
                show(figures, None)
            await asyncio.sleep(every_s)


async def _read(client: httpx.AsyncClient, url: str, names: FigureNames, history: FigureHistory) -> EngineFigures:
    """One reading. Raises _Unread."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S), client.stream("GET", url) as answer:
            if answer.status_code != 200:
                raise _Unread(f"were answered with {answer.status_code}")
            text = bytearray()
            async for piece in answer.aiter_bytes():
                text += piece
                if len(text) > METRICS_BYTES_MAX:
                    raise _Unread(f"are larger than {METRICS_BYTES_MAX // 1024**2} MiB")
    except TimeoutError:
        raise _Unread(f"did not come within {READ_TIMEOUT_S:g} s") from None
    except httpx.HTTPError as error:
        raise _Unread(f"could not be read ({type(error).__name__})") from None
    exposition = text.decode("utf-8", "replace")
    try:
        figures, counters = read_figures(exposition, names), read_counters(exposition, names)
    except ValueError:
        raise _Unread("are in no format that Prometheus has") from None
    if figures is None:
        raise _Unread("tell of no running or waiting requests under the names that llmgw knows")
    return history.take(figures, counters, time.monotonic())
