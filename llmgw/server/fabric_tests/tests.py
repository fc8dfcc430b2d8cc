"""All bandwidth tests of this control plane: starts, watches and ends them, and keeps what they found."""

from __future__ import annotations

import asyncio
from collections import Counter

from llmgw.fabric.tested import ages_s, passed_at, test_doubts
from llmgw.fleet.fabric_test_gate import FabricTestGate
from llmgw.messages.admin import Done
from llmgw.messages.fabric_test_views import FabricTestResult, FabricTestView, StartFabricTest
from llmgw.server.admin.backend import AdminError
from llmgw.server.fabric_tests.plan import Checks, plan_test
from llmgw.server.fabric_tests.running import RunningTest
from llmgw.server.hub import Hub
from llmgw.server.store.interface import StoreInterface

UNWATCHED_S = 30.0
"""A test that nobody asks about for so long is ended: whoever started it is gone, and could end it no more."""
WATCH_EVERY_S = 1.0
GATE_EVERY_S = 30.0
RUNNING_MAX = 8
ENDED_KEPT_MAX = 8


class FabricTests:
    """`AdminFabricTests` over hub and store. `require_s` is `placement.require_fabric_test`; None: off."""

    def __init__(self, hub: Hub, store: StoreInterface, *, require_s: float | None = None) -> None:
        self._hub = hub
        self._store = store
        self._require_s = require_s
        self._tests: dict[str, RunningTest] = {}
        self._count = 0
        self._results = 0
        self._set_gate()

    # What operators ask for.

    async def start(self, wish: StartFabricTest, *, by: str) -> FabricTestView:
        """Begin a test; it goes on while somebody asks about it. Raises AdminError with a sentence."""
        running = [test for test in self._tests.values() if test.state == "running"]
        if len(running) >= RUNNING_MAX:
            raise AdminError(503, "busy", f"{len(running)} fabric tests run already; wait for the end of one")
        plan = plan_test(self._checks(wish.busy_ok), wish)
        self._count += 1
        # Of this server's life and number: an agent never hears one twice.
        test_id = f"{self._hub.epoch}-{self._count}"
        test = RunningTest(
            self._hub,
            test_id,
            plan,
            wish,
            by=by,
            checks=lambda: self._checks(wish.busy_ok, but=test_id),
            keep=self._keep,
            over=self._is_over,
        )
        self._tests[test_id] = test
        return test.view()

    async def view(self, test_id: str, *, after: int, seen: int | None, wait_s: float) -> FabricTestView:
        """How a test stands, its results behind the first `after`; with `seen`, at its next change."""
        test = self._find(test_id)
        test.asked_at = self._hub.clock.monotonic()
        if seen is not None:
            await test.wait(seen, wait_s)
        return test.view(after)

    async def end(self, test_id: str, *, by: str) -> Done:
        """End a test; when this is answered, nothing of it runs on any node that is there."""
        test = self._find(test_id)
        if test.state != "running":
            return Done(message=f"the test {test_id} is over already")
        await test.end(f"ended by {by}")
        return Done(message=f"the test {test_id} is ended")

    def kept(self, *, fabric: str | None, node: str | None, limit: int) -> list[FabricTestResult]:
        """Results of all tests that are kept, newest first."""
        found = (
            result
            for result in reversed(self._store.fabric_tests())
            if fabric in (None, result.fabric) and (node is None or node in result.nodes)
        )
        return [result for result, _ in zip(found, range(limit), strict=False)]

    # What the control plane asks.

    @property
    def version(self) -> int:
        """Grows with each result."""
        return self._results

    def _keep(self, result: FabricTestResult) -> None:
        self._store.add_fabric_test(result)
        self._results += 1

    def doubts(self) -> dict[tuple[str, str], str]:
        """(node, fabric) → why tests of the last week speak against using the node on it."""
        return test_doubts(self._store.fabric_tests(), self._hub.clock.wall())

    async def run(self) -> None:
        """End tests that nobody watches, and keep the ages of tests in the fleet. Returns by being cancelled."""
        try:
            looks = 0
            while True:
                await asyncio.sleep(WATCH_EVERY_S)
                await self._end_unwatched()
                looks += 1
                if looks * WATCH_EVERY_S >= GATE_EVERY_S:
                    looks = 0
                    self._set_gate()
        finally:
            for test in self._tests.values():
                test.task.cancel()
            await asyncio.gather(*(test.task for test in self._tests.values()), return_exceptions=True)

    # Inside.

    def _checks(self, busy_ok: bool, but: str | None = None) -> Checks:
        testing = {
            node: test.id
            for test in self._tests.values()
            if test.state == "running" and test.id != but
            for node in test.plan.nodes
        }
        must = self._hub.questions.must_test_bandwidth
        return Checks(self._hub.fleet, must, testing, busy_ok)

    def _find(self, test_id: str) -> RunningTest:
        test = self._tests.get(test_id)
        if test is None:
            raise AdminError(
                404,
                "unknown-test",
                f"there is no test {test_id!r} of this server's life; llmgw ctl fabric-tests lists kept results",
            )
        return test

    async def _end_unwatched(self) -> None:
        now = self._hub.clock.monotonic()
        for test in list(self._tests.values()):
            watched = test.waiting or now - test.asked_at < UNWATCHED_S
            if test.state == "running" and not test.wish.detached and not watched:
                await test.end(f"nobody asked about it for {UNWATCHED_S:.0f} s")

    def _is_over(self, test: RunningTest) -> None:
        counts = Counter(result.grade for result in test.results)
        told = ", ".join(f"{count} {grade}" for grade, count in sorted(counts.items())) or "nothing was measured"
        reason = f"{told} of {test.plan.planned} measurements" if counts else told
        if test.reason is not None:
            reason += f"; {test.reason}"
        self._store.record(
            "fabric",
            test.plan.fabric,
            "tested" if test.state == "done" else "test ended",
            self._hub.clock.wall(),
            reason=reason,
            nodes=test.plan.nodes,
        )
        self._set_gate()
        over = [one for one in self._tests.values() if one.state != "running"]
        for old in over[: -ENDED_KEPT_MAX or None]:
            del self._tests[old.id]

    def _set_gate(self) -> None:
        if self._require_s is None:
            return
        now = self._hub.clock.wall()
        passed = passed_at(self._store.fabric_tests(), now)
        self._hub.set_fabric_test_gate(FabricTestGate(required_s=self._require_s, ages_s=ages_s(passed, now)))
