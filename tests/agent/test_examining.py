"""What is looked at seldom is kept, looked at again at the beat, and holds up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from llmgw.agent.examining import BEAT_S, SlowFindings
from llmgw.messages.findings import Finding
from tests.patience import PATIENCE


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10 * PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_findings_are_kept_and_looked_for_again_at_the_beat() -> None:
    now, looks = [0.0], []

    def examine() -> list[Finding]:
        looks.append(now[0])
        return [Finding(check=f"x{len(looks)}", severity="warning", where="n", what="w")]

    slow = SlowFindings(examine, clock=lambda: now[0])
    until(lambda: [finding.check for finding in slow.latest()] == ["x1"])
    now[0] = BEAT_S / 2
    assert [finding.check for finding in slow.latest()] == ["x1"]
    now[0] = BEAT_S
    until(lambda: [finding.check for finding in slow.latest()] == ["x2"])
    assert looks == [0.0, BEAT_S]


def test_an_examination_that_hangs_or_fails_leaves_what_was_known() -> None:
    now, release = [0.0], threading.Event()
    found = Finding(check="x", severity="warning", where="n", what="w")
    calls: list[int] = []

    def examine() -> list[Finding]:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no such luck")
        if len(calls) == 3:
            release.wait(30)
        return [found]

    slow = SlowFindings(examine, clock=lambda: now[0])
    until(lambda: slow.latest() == [found])
    for _ in range(3):
        now[0] += BEAT_S
        slow.latest()
        until(lambda: len(calls) >= 2)
    until(lambda: slow.latest() == [found])
    release.set()
