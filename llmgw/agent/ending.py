"""Ending processes: SIGTERM, patience, SIGKILL, until nothing is left. Knows no phases and no reports."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import structlog

from llmgw.agent.processes import ProcessIdentity, ProcessInfo, is_alive, send_signal

log = structlog.get_logger("agent")

# What is left when the main process has gone: its helpers, which were signalled with it. vLLM's took 10 s.
ORPHAN_GRACE_S = 15.0
STUCK_AFTER_S = 10.0
LOOK_FIRST_S = 0.03
LOOK_MAX_S = 0.5


async def end_processes(
    find: Callable[[], list[ProcessInfo]],
    *,
    grace_s: float,
    main: ProcessIdentity | None = None,
    on_slow: Callable[[list[ProcessInfo]], None] | None = None,
) -> None:
    """End everything that `find` (blocking, run in a thread) returns, and return when it returns nothing.

    What it has returned once is ended, whether it still finds it or not: what leads to a process may be no more
    than its parent, which is ended beside it.

    While `main` lives, SIGTERM goes to its session alone, so that an engine can finish before its sidecars
    are taken away; then to the rest. After `grace_s` (0: at once), or 15 s after `main` has gone, SIGKILL
    goes to all. `on_slow` is called once, when processes outlive SIGKILL by 10 s, hanging in the kernel.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_s
    told: set[ProcessIdentity] = set()
    known: dict[ProcessIdentity, ProcessInfo] = {}
    killing_since: float | None = None
    wait_s = LOOK_FIRST_S
    empty = 0
    orphaned = main is None
    while True:
        known |= {info.identity: info for info in await asyncio.to_thread(find)}
        known = {identity: info for identity, info in known.items() if is_alive(identity)}
        left = list(known.values())
        now = loop.time()
        # Twice, since a process that forks and exits can hide its child from one walk through /proc.
        empty = 0 if left else empty + 1
        if empty == 2:
            return
        if not orphaned and main is not None and not is_alive(main):
            orphaned = True
            deadline = min(deadline, now + ORPHAN_GRACE_S)
        if left and now >= deadline:
            killing_since = killing_since or now
            for info in left:
                send_signal(info.identity, signal.SIGKILL)
            if on_slow is not None and now - killing_since > STUCK_AFTER_S:
                log.error("processes outlive SIGKILL", pids=[info.pid for info in left])
                on_slow(left)
                on_slow = None
        else:
            for info in left:
                first = orphaned or (main is not None and info.session == main.pid)
                if first and info.identity not in told:
                    told.add(info.identity)
                    send_signal(info.identity, signal.SIGTERM)
        await asyncio.sleep(wait_s)
        wait_s = min(LOOK_MAX_S, wait_s * 1.3)
