"""Thousands of open streams over two routers, whose limits of files must be high enough."""

from __future__ import annotations

import resource
from contextlib import ExitStack

from tests.bench.router.gateway import Gateway
from tests.bench.router.goals import OURS
from tests.bench.router.measurement import Measurement
from tests.bench.router.processes import files_max
from tests.bench.router.suites import Setting, hold
from tests.bench.router.targets import Place

WORKERS = 2


def many_streams(setting: Setting, place: Place, count: int) -> tuple[Measurement, list[str]]:
    """Open so many at once; the measurement, and sentences about the limits."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < count + 100:
        why = f"{count} streams need as many open files in one process, and {hard} are the most here (ulimit -Hn)"
        return Measurement(suite="many-streams", target=OURS, failed=why), [why]
    gateway = Gateway("llmgw-workers", workers=WORKERS)
    shares: list[int] = []
    with ExitStack() as stack:
        stack.callback(gateway.stop)
        gateway.start(place)
        limits = [files_max(pid) for pid in gateway.pids]
        found = hold(setting, gateway, count, lambda: shares.extend(told.in_flight for told in gateway.told))
    found.suite, found.target = "many-streams", OURS
    notes = [
        f"{count} open streams over {WORKERS} workers: {' and '.join(map(str, shares))} of them; "
        f"each worker may open {min(limits)} files."
    ]
    needed = 2 * count // WORKERS
    if min(limits) < needed:
        notes.append(f"A worker needs {needed} files, and may open {min(limits)}.")
    return found, notes
