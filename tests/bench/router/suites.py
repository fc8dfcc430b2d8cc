"""The suites: what load a target gets, and what is measured of it."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.router.leaving import LEAVINGS, leave
from tests.bench.router.measurement import Measurement
from tests.bench.router.processes import cpu_time, memory_kib, wait_until
from tests.bench.router.targets import MODEL, Target
from tests.bench.router.tools import Engines, Load

FOR_EVER = 1_000_000
BODY_BYTES = 6 * 1024 * 1024
"""Of an image; 8 MiB as base64."""


@dataclass(frozen=True)
class Setting:
    """What every suite needs. `seconds` is how long load is put on, `streams` and `leavers` are counts."""

    folder: Path
    engines: Engines
    load: Load
    seconds: float
    held_streams: int
    leavers: int

    @property
    def duration_ms(self) -> int:
        return int(self.seconds * 1000)


@dataclass(frozen=True)
class Suite:
    """`operation` is what the CPU time is divided by."""

    name: str
    about: str
    operation: str
    measure: Callable[[Setting, Target], Measurement]
    once: bool = False
    """In the first round only."""


def _requests(**load: Any) -> Callable[[Setting, Target], Measurement]:
    def measure(setting: Setting, target: Target) -> Measurement:
        setting.engines.behave()
        # What needs 50 ms a request gets through a first one of each connection in more than a second.
        longer = 4 if target.slow else 1
        times = {"duration_ms": setting.duration_ms * longer, "warmup_ms": 300}
        return _loaded(setting, target, "requests", mode="req", **times, **load)

    return measure


def _streams(engines: dict[str, int], **load: Any) -> Callable[[Setting, Target], Measurement]:
    def measure(setting: Setting, target: Target) -> Measurement:
        setting.engines.behave(**engines)
        times = {"duration_ms": setting.duration_ms, "warmup_ms": 700}
        return _loaded(setting, target, "chunks", mode="stream", **times, **load)

    return measure


def _large_bodies(setting: Setting, target: Target) -> Measurement:
    setting.engines.behave()
    body = setting.folder / "body.json"
    if not body.exists():
        image = "data:image/png;base64," + base64.b64encode(os.urandom(BODY_BYTES)).decode()
        parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": image}}]
        body.write_text(json.dumps({"model": MODEL, "messages": [{"role": "user", "content": parts}]}))
    return _loaded(
        *(setting, target, "requests"),
        **{"mode": "req", "conns": 4, "body": body, "duration_ms": setting.duration_ms, "warmup_ms": 500},
    )


def _loaded(setting: Setting, target: Target, operation: str, **load: Any) -> Measurement:
    """Put load on a target and divide what CPU time it used by what its engines counted."""
    if target.key is not None:
        load["key"] = target.key
    counted, used = setting.engines.counts()[operation], cpu_time(target.pids)
    measured = setting.load.run(target.port, **load)
    used = cpu_time(target.pids) - used
    operations = setting.engines.counts()[operation] - counted
    latency = measured.get("req_us") or measured.get("chunk_us") or {}
    found = Measurement(
        operations=operations,
        per_s=measured["requests_per_s"] or measured["chunks_per_s"],
        p50_us=latency.get("p50"),
        p99_us=latency.get("p99"),
        errors=measured["errors"],
        non200=measured["non200"],
        short=measured["short"],
        first_bad_status=measured["first_bad"],
    )
    if operations and target.pids:
        found.cpu_us = 1e6 * used.total_s / operations
        found.system_us = 1e6 * used.system_s / operations
    return found


def _held(setting: Setting, target: Target) -> Measurement:
    """Memory of a stream that is open and slow."""
    return hold(setting, target, setting.held_streams)


def hold(
    setting: Setting, target: Target, count: int, while_open: Callable[[], None] = lambda: None
) -> Measurement:
    """Open so many streams, look at the target, and close them."""
    ramp_ms, hold_ms = 2000 + count // 2, 3000 + count // 2
    setting.engines.behave(chunks=FOR_EVER, gap_us=2_000_000)
    before_kib = memory_kib(target.pids)
    load: dict[str, Any] = {"key": target.key} if target.key is not None else {}
    load |= {"mode": "hold", "conns": count, "ramp_ms": ramp_ms, "warmup_ms": 0, "duration_ms": hold_ms}
    running = setting.load.begin(target.port, **load)
    wait_until(lambda: setting.engines.counts()["active"] >= count, (ramp_ms + hold_ms) / 1000 - 2.0, 0.2)
    time.sleep(0.5)  # for the first chunks to come through
    open_now = setting.engines.counts()["active"]
    open_kib = memory_kib(target.pids)
    while_open()
    measured = setting.load.finish(running, ramp_ms / 1000 + hold_ms / 1000 + 60)
    missing = max(0, count - measured["begun_streams"])
    return Measurement(
        operations=open_now,
        kib_per_stream=(open_kib - before_kib) / max(1, open_now),
        errors=measured["errors"] + missing,
        non200=measured["non200"],
        short=missing,
    )


SUITES = (
    # First, since later a target has memory that it was given for something else.
    Suite("memory", "streams that are open", "stream", _held, once=True),
    Suite("request", "requests over 32 connections", "request", _requests(conns=32)),
    Suite("rate", "500 requests a second", "request", _requests(conns=64, rate=500)),
    Suite("flat-out", "64 streams flat out", "chunk", _streams({"chunks": 200}, conns=64, chunks=200)),
    Suite(
        "paced",
        "200 streams of 50 chunks a second",
        "chunk",
        _streams({"chunks": FOR_EVER, "gap_us": 20_000}, conns=200, ramp_ms=1000),
    ),
    Suite("large-body", "bodies of 8 MB over 4 connections", "request", _large_bodies),
    *(
        Suite(f"leaving-{kind}", f"clients that leave {about}", "client", leave(kind), once=True)
        for kind, about in LEAVINGS.items()
    ),
)
