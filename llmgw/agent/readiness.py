"""When an engine that serves HTTP is ready: its one-token request is answered, before its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llmgw.agent.probe import Prober
from llmgw.agent.spec_store import ShardRecord
from llmgw.messages.agent import ShardSpec

# An engine adopted while `ready` is busy, not dead, for at least this long (DESIGN.md section 6).
ADOPTED_SILENCE_S_MIN = 600.0


async def wait_for_answers(
    record: ShardRecord,
    address: str,
    *,
    interval_s: float,
    now_boot_s: Callable[[], float],
    on_note: Callable[[str], None],
    is_anothers: Callable[[], bool] = lambda: False,
) -> str | None:
    """Ask until the engine answers: None then, or a sentence when the time allowed is over.

    The time runs from the engine's start, also when an earlier agent had started it. `on_note` is told what
    each check said. `is_anothers` (blocking) is asked once an answer came: True when it is another shard that
    listens at the port, whose answers prove nothing. The record has a port and a readiness check.
    """
    assert record.http_port is not None
    prober = Prober(address, record.http_port)
    try:
        return await _ask(record, prober, interval_s, now_boot_s, on_note, is_anothers)
    finally:
        await prober.close()


async def _ask(
    record: ShardRecord,
    prober: Prober,
    interval_s: float,
    now_boot_s: Callable[[], float],
    on_note: Callable[[str], None],
    is_anothers: Callable[[], bool],
) -> str | None:
    assert record.readiness is not None
    began, allowed_s = time_allowed(
        record.spec, record.phase, record.received_boot_s, record.started_boot_s, now_boot_s()
    )
    loaded = record.load is None
    note = "no check was answered"
    while True:
        left_s = began + allowed_s - now_boot_s()
        if left_s <= 0:
            return _too_late(record, loaded, allowed_s, note)
        try:
            async with asyncio.timeout(left_s):
                if not loaded and record.load is not None:
                    result = await prober.loaded(record.load)
                    loaded, note = result.ok, result.note
                if loaded:
                    result = await prober.works(record.readiness)
                    if result.ok and not await asyncio.to_thread(is_anothers):
                        return None
                    note = f"another shard answers at port {record.http_port}" if result.ok else result.note
        except TimeoutError:
            pass  # what the check before this last one said tells more
        on_note(note)
        await asyncio.sleep(min(interval_s, max(0.01, left_s)))


def time_allowed(
    spec: ShardSpec, phase: str, received_boot_s: float, started_boot_s: float | None, now_boot_s: float
) -> tuple[float, float]:
    """How long an engine may take to answer: (since when, seconds), on the clock of `now_boot_s`.

    `received_boot_s` is when the shard's start was taken, `started_boot_s` when its processes were started.
    Nothing that an engine shows of its progress moves it (invariant 9), nor does another agent.
    """
    allowed_s = spec.load_timeout_s + (spec.rendezvous_timeout_s if spec.nodes > 1 else 0.0)
    if phase == "ready":
        return now_boot_s, max(allowed_s, ADOPTED_SILENCE_S_MIN)
    return started_boot_s if started_boot_s is not None else received_boot_s, allowed_s


def _too_late(record: ShardRecord, loaded: bool, allowed_s: float, note: str) -> str:
    if record.phase == "ready":
        return f"the engine did not answer within {allowed_s:g} s of its adoption ({note})"
    if loaded:
        return f"the engine loaded but answered no one-token request within {allowed_s:g} s of its start ({note})"
    return (
        f"the engine did not answer within {allowed_s:g} s of loading ({note}); "
        "read its log, or raise the profile's load_timeout"
    )
