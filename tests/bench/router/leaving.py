"""Clients that leave, one after the other: how long until the engine sees its connection closed."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.bench.router.gateway import NARROW, Gateway
from tests.bench.router.measurement import Measurement
from tests.bench.router.processes import wait_until
from tests.bench.router.targets import MODEL, Target, chat_body, chat_headers

if TYPE_CHECKING:
    from tests.bench.router.suites import Setting

LEAVINGS = {
    "mid-stream": "in the middle of a stream",
    "first": "before the first chunk of a stream",
    "whole": "before an answer that is no stream",
    "queued": "while their request waits in the queue",
}
MISSED_S = 1.1
MISSED_MAX = 3
"""Who misses so many is believed, and asked no further."""
_LATER_US = 1_500_000
_BEHAVIOURS = {
    "mid-stream": {"chunks": 1_000_000, "gap_us": 20_000},
    "first": {"delay_us": _LATER_US, "chunks": 5},
    "whole": {"delay_us": _LATER_US},
}


def leave(kind: str) -> Callable[[Setting, Target], Measurement]:
    """The suite for one of LEAVINGS."""

    def measure(setting: Setting, target: Target) -> Measurement:
        if kind == "queued":
            return _leave_queue(setting, target)
        setting.engines.behave(**_BEHAVIOURS[kind])
        took_ms: list[float] = []
        missed = 0
        while len(took_ms) + missed < setting.leavers and missed < MISSED_MAX:
            one = _leave_once(setting, target, kind)
            if one is None:
                missed += 1
            else:
                took_ms.append(one)
        return _found(took_ms, missed)

    return measure


def _found(took_ms: list[float], missed: int) -> Measurement:
    return Measurement(
        operations=len(took_ms) + missed,
        seen=len(took_ms),
        missed=missed,
        p50_us=1000 * statistics.median(took_ms) if took_ms else None,
        max_ms=max(took_ms, default=None),
    )


def _leave_once(setting: Setting, target: Target, kind: str) -> float | None:
    """Milliseconds from the client's close to the engine's; None when it did not come in time."""
    engines = setting.engines
    before = engines.counts()
    with _ask(target, MODEL, stream=kind != "whole") as sock:
        if kind == "mid-stream":
            seen = b""
            while seen.count(b"data:") < 2:
                data = sock.recv(65536)
                if not data:
                    return None
                seen += data
        elif not wait_until(lambda: engines.counts()["requests"] > before["requests"], 5.0, 0.001):
            return None
        left_ns = time.monotonic_ns()
    if not wait_until(lambda: engines.counts()["aborted"] > before["aborted"], MISSED_S, 0.001):
        wait_until(lambda: not engines.counts()["active"], _LATER_US / 1e6, 0.05)
        return None
    return (engines.counts()["last_abort_ns"] - left_ns) / 1e6


def _leave_queue(setting: Setting, target: Target) -> Measurement:
    """Who leaves the queue is forgotten: no engine gets the request when there is room for it."""
    if not isinstance(target, Gateway):
        return Measurement(failed="it has no queue")
    engines = setting.engines
    engines.behave(**_BEHAVIOURS["mid-stream"])
    missed = 0
    for count in range(setting.leavers):
        before = engines.counts()["requests"]
        holder = _ask(target, NARROW, stream=True)
        assert holder.recv(65536)
        with _ask(target, NARROW, stream=True) as queued:
            queued.settimeout(0.02)
            try:
                answer = queued.recv(65536)
            except TimeoutError:
                answer = b""
        if answer:
            holder.close()
            return Measurement(failed=f"nothing is queued: {answer.splitlines()[0].decode('latin-1')}")
        holder.close()
        wait_until(lambda: not engines.counts()["active"], MISSED_S, 0.001)
        missed += engines.counts()["requests"] != before + 1
        if missed >= MISSED_MAX:
            return Measurement(operations=count + 1, seen=count + 1 - missed, missed=missed)
    return Measurement(operations=setting.leavers, seen=setting.leavers - missed, missed=missed)


def _ask(target: Target, model: str, *, stream: bool) -> socket.socket:
    """A connection over which a request was sent."""
    body = chat_body(stream, model)
    headers = chat_headers(target.key) | {"host": "bench", "content-length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    sock = socket.create_connection(("127.0.0.1", target.port), timeout=10)
    sock.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{lines}\r\n".encode() + body)
    return sock
