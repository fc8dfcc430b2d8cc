"""One test under way: its rounds, what it has found so far, and who waits to hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal

import structlog

from llmgw.fabric.bandwidth import RailEnd
from llmgw.fabric.pairwise import in_common
from llmgw.messages.agent import Port
from llmgw.messages.fabric_test import BandwidthPort
from llmgw.messages.fabric_test_views import FabricTestResult, FabricTestView, StartFabricTest
from llmgw.server.admin.backend import AdminError
from llmgw.server.fabric_tests.measure import measure, prepare
from llmgw.server.fabric_tests.plan import Checks, Plan, rails
from llmgw.server.hub import Hub
from llmgw.server.hub_error import HubError

log = structlog.get_logger("server")

RESULTS_PER_ANSWER_MAX = 1000
PREPARED_AT_ONCE_MAX = 16
NOTES_MAX = 200


class CannotTestError(Exception):
    """Not one measurement can be made; the message is a sentence."""


class RunningTest:
    """A test, from its start until this server forgets it. `keep` is given each result when it is there (but not
    those that only a lost node is to blame for), and `over` the whole when it has ended, before anybody is told.

    `checks` tells anew, before each pair, whether both nodes may be tested still.
    """

    def __init__(
        self,
        hub: Hub,
        test_id: str,
        plan: Plan,
        wish: StartFabricTest,
        *,
        by: str,
        checks: Callable[[], Checks],
        keep: Callable[[FabricTestResult], None],
        over: Callable[[RunningTest], None],
    ) -> None:
        self.id = test_id
        self.plan = plan
        self.wish = wish
        self.results: list[FabricTestResult] = []
        self.state: Literal["running", "done", "ended"] = "running"
        self.reason: str | None = None
        self.asked_at = hub.clock.monotonic()
        """When somebody last asked how it goes."""
        self.waiting = 0
        """How many wait for its next change."""
        self._hub = hub
        self._by = by
        self._checks = checks
        self._keep = keep
        self._over = over
        self._started_at = hub.clock.wall()
        self._ended_at: float | None = None
        self._now: dict[str, str] = {}
        self._notes = list(plan.notes)
        self._blamed: list[str] = []
        self._version = 0
        self._changed = asyncio.Event()
        self._ends = 0
        self._ready: dict[str, dict[str, float]] = {}
        self._out: dict[str, str] = {}
        self.task = asyncio.create_task(self._run(), name=f"fabric test {test_id}")

    # Hearing of it.

    def view(self, after: int = 0) -> FabricTestView:
        """How it stands, with the results behind the first `after`, bounded."""
        return FabricTestView(
            id=self.id,
            state=self.state,
            reason=self.reason,
            fabric=self.plan.fabric,
            nodes=self.plan.nodes,
            all_pairs=self.wish.all_pairs,
            by=self._by,
            started_at=self._started_at,
            ended_at=self._ended_at,
            seconds=self.wish.seconds,
            planned=self.plan.planned,
            done=len(self.results),
            version=self._version,
            now=list(self._now.values()),
            notes=self._notes,
            blamed=self._blamed,
            first=min(after, len(self.results)),
            results=self.results[after : after + RESULTS_PER_ANSWER_MAX],
        )

    async def wait(self, seen: int, wait_s: float) -> None:
        """Until it is another than the version that was seen, at most so long."""
        self.waiting += 1
        try:
            async with asyncio.timeout(wait_s):
                while self._version == seen and self.state == "running":
                    await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1
            self.asked_at = self._hub.clock.monotonic()

    async def end(self, reason: str) -> None:
        """End it; returns when nothing of it is left on any node."""
        if self.state == "running" and self.reason is None:
            self.reason = reason
        self.task.cancel()
        await asyncio.wait([self.task])

    def _news(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _note(self, sentence: str) -> None:
        if len(self._notes) < NOTES_MAX:
            self._notes.append(sentence)

    # Running.

    async def _run(self) -> None:
        try:
            await self._prepare()
            for pairs in self.plan.rounds:
                async with asyncio.TaskGroup() as group:
                    for one, other in pairs:
                        group.create_task(self._test_pair(one, other))
            if not self.results:
                raise CannotTestError("; ".join(self._out.values()) or "there was nothing left to measure")
            self.state = "done"
        except CannotTestError as error:
            self.state, self.reason = "ended", str(error)
        except asyncio.CancelledError:
            self.state = "ended"
            self.reason = self.reason or "the server was stopped"
            raise
        except Exception as error:  # no defect of a test may end the server
            log.exception("a fabric test failed", test=self.id, error=repr(error))
            self.state, self.reason = "ended", "the server failed to run the test; its log says why"
        finally:
            self._now.clear()
            if self.wish.all_pairs:
                facts = self._hub.fleet.fabric_facts
                self._blamed = in_common(self.results, self._leaf_of, facts.leaf_names)
            self._ended_at = self._hub.clock.wall()
            self._over(self)
            self._news()

    async def _prepare(self) -> None:
        """Every node's program is looked for, and installed where it may be; who has none is left out."""
        turn = asyncio.Semaphore(PREPARED_AT_ONCE_MAX)

        async def one(node_id: str) -> None:
            async with turn:
                self._doing(node_id, f"looking for perftest on {node_id}, to install it where it is missing")
                try:
                    answer = await prepare(self._hub, node_id, self._ports_of(node_id), install=self.wish.install)
                    problem = answer.error
                except HubError as error:
                    problem, answer = error.message, None
                if problem is not None or answer is None:
                    self._out[node_id] = f"{node_id}: {problem}"
                else:
                    self._ready[node_id] = answer.pcie_gbps
                    if answer.installed:
                        self._note(f"perftest was installed on {node_id}")
                self._doing(node_id, None)

        await asyncio.gather(*(one(node_id) for node_id in self.plan.nodes))
        if len(self._ready) < 2:
            raise CannotTestError("; ".join(self._out.values()))
        for sentence in self._out.values():
            self._note(f"left out: {sentence}")

    def _ports_of(self, node_id: str) -> Iterable[BandwidthPort]:
        node = self._hub.fleet.nodes.get(node_id)
        for port, _ in rails(node, node, self.plan.fabric) if node is not None else ():
            yield BandwidthPort(adapter=port.adapter, port=port.port)

    async def _test_pair(self, one: str, other: str) -> None:
        """One rail after the other, and each in both directions."""
        if one not in self._ready or other not in self._ready:
            return
        if self.wish.all_pairs:
            # What was true at the start may not be any more, hours later.
            try:
                checks = self._checks()
                for node_id in (one, other):
                    checks.must_offer(checks.must_be_free(node_id), self.plan.fabric)
            except AdminError as error:
                self._note(f"{one} and {other} were not tested: {error}")
                return
        nodes = [self._hub.fleet.nodes.get(node_id) for node_id in (one, other)]
        if nodes[0] is None or nodes[1] is None:
            return
        paired = rails(nodes[0], nodes[1], self.plan.fabric)
        for direction in (False, True):
            for rail, (port, other_port) in enumerate(paired, start=1):
                ends = (self._end_at(one, port), self._end_at(other, other_port))
                sender, receiver = reversed(ends) if direction else ends
                await self._measure(rail, sender, receiver)

    def _end_at(self, node_id: str, port: Port) -> RailEnd:
        return RailEnd(node=node_id, port=port, pcie_gbps=self._ready[node_id].get(port.adapter))

    async def _measure(self, rail: int, sender: RailEnd, receiver: RailEnd) -> None:
        self._ends += 1
        key = f"{sender.node} {receiver.node}"
        self._doing(key, f"rail {rail}: {sender.node} {sender.name} → {receiver.node} {receiver.name}")
        measured = await measure(
            self._hub, sender, receiver, seconds=self.wish.seconds, end_id=f"{self.id}-{self._ends}"
        )
        result = FabricTestResult(
            test_id=self.id,
            at=self._hub.clock.wall(),
            fabric=self.plan.fabric,
            rail=rail,
            sender=sender.node,
            sender_port=sender.name,
            receiver=receiver.node,
            receiver_port=receiver.name,
            gbps=measured.gbps,
            limit_gbps=measured.limit_gbps,
            limited_by=measured.limited_by,
            grade=measured.grade,
            words=measured.words,
        )
        self.results.append(result)
        # What a lost node left unmeasured speaks against no fabric, and against no partner, for a week.
        if not measured.lost:
            self._keep(result)
        self._doing(key, None)

    def _doing(self, key: str, sentence: str | None) -> None:
        if sentence is None:
            self._now.pop(key, None)
        else:
            self._now[key] = sentence
        self._news()

    def _leaf_of(self, node_id: str, rail: int) -> str | None:
        place = self._hub.fleet.fabric_facts.places.get((node_id, self.plan.fabric))
        leaves = place.leaves if place is not None else ()
        return (leaves[rail - 1] or None) if rail <= len(leaves) else None
