"""What the server asks of a node beside its shards, and the answers that wait for the next report.

A question that takes its time is answered beside the poll: no start and no stop ever waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import structlog

from llmgw.agent.conversation import BandwidthTester, Keeper, Upgrades
from llmgw.messages.agent import (
    EngineHelp,
    ListWeights,
    LogChunk,
    ReadEngineHelp,
    ReadLog,
    RemoveWeights,
    WeightsAnswer,
)
from llmgw.messages.fabric import AskFabric, FabricText
from llmgw.messages.fabric_test import FABRIC_TEST_FEATURE, BandwidthAnswer, BandwidthQuestion
from llmgw.messages.upgrade import UPGRADE_FEATURE, Upgrade, UpgradeTold

log = structlog.get_logger("agent")

Question = ReadLog | ReadEngineHelp | ListWeights | RemoveWeights | AskFabric | BandwidthQuestion | Upgrade
A = TypeVar("A", LogChunk, EngineHelp, WeightsAnswer, FabricText, BandwidthAnswer, UpgradeTold)
Q = TypeVar("Q", LogChunk, EngineHelp, WeightsAnswer, FabricText, BandwidthAnswer)

# Each imports an engine, which takes gigabytes of memory for some seconds.
HELPS_AT_ONCE_MAX = 2
WEIGHTS_AT_ONCE_MAX = 4
# Each sends a packet to every switch and adapter of the fabric.
MAPS_AT_ONCE_MAX = 1
MANAGERS_AT_ONCE_MAX = 2
# A measurement takes a minute, and while it runs it can be ended: twice the ends that may run at once.
BANDWIDTHS_AT_ONCE_MAX = 16
# How long an upgrade waits for the server to have heard how it goes, before it goes on all the same.
HEARD_WAIT_S = 5.0


@dataclass
class Answers:
    """Answers of one report."""

    logs: list[LogChunk] = field(default_factory=list)
    helps: list[EngineHelp] = field(default_factory=list)
    weights: list[WeightsAnswer] = field(default_factory=list)
    managers: list[FabricText] = field(default_factory=list)
    maps: list[FabricText] = field(default_factory=list)
    bandwidths: list[BandwidthAnswer] = field(default_factory=list)
    upgrades: list[UpgradeTold] = field(default_factory=list)

    def __bool__(self) -> bool:
        small = self.logs or self.helps or self.weights or self.managers or self.bandwidths or self.upgrades
        return bool(small or self.maps)


class _Kind(Generic[A]):
    """Questions of one kind that are being answered, and the answers that wait.

    The oldest answers make room when a server asks and does not listen.
    """

    def __init__(self, *, waiting_max: int, per_report: int) -> None:
        self.running: set[asyncio.Task[None]] = set()
        self.waiting: deque[A] = deque(maxlen=waiting_max)
        self._waiting_max = waiting_max
        self._per_report = per_report

    def take(self) -> list[A]:
        return [self.waiting.popleft() for _ in range(min(self._per_report, len(self.waiting)))]

    def put_back(self, taken: list[A]) -> None:
        self.waiting.extendleft(reversed(taken[: self._waiting_max - len(self.waiting)]))


class Answering:
    """Answers the questions of a session, and forgets them with it.

    `engine_help` (of a request id and an engine) asks an engine for its help text, and `fabric_tools` asks a
    fabric, both in bounded time; `bandwidth` runs the ends of bandwidth tests, `upgrades` replaces the program.
    None: not offered. `news` is called when there is something to report.
    """

    def __init__(
        self,
        keeper: Keeper,
        engine_help: Callable[[str, str], Awaitable[EngineHelp]] | None,
        fabric_tools: Callable[[AskFabric], Awaitable[FabricText]] | None,
        news: Callable[[], None],
        bandwidth: BandwidthTester | None = None,
        upgrades: Upgrades | None = None,
    ) -> None:
        self._keeper = keeper
        self._upgrades = upgrades
        self._bandwidth = bandwidth
        self._engine_help = engine_help
        self._fabric_tools = fabric_tools
        self._news = news
        self._logs: _Kind[LogChunk] = _Kind(waiting_max=64, per_report=8)
        # One a report: they are large.
        self._helps: _Kind[EngineHelp] = _Kind(waiting_max=4, per_report=1)
        self._weights: _Kind[WeightsAnswer] = _Kind(waiting_max=16, per_report=1)
        self._managers: _Kind[FabricText] = _Kind(waiting_max=16, per_report=1)
        self._maps: _Kind[FabricText] = _Kind(waiting_max=2, per_report=1)
        self._bandwidths: _Kind[BandwidthAnswer] = _Kind(waiting_max=32, per_report=8)
        self._told: _Kind[UpgradeTold] = _Kind(waiting_max=8, per_report=8)
        self._heard = asyncio.Event()

    @property
    def features(self) -> list[str]:
        """What the registration offers for it."""
        offered = {
            "engine_help": self._engine_help,
            "fabric_tools": self._fabric_tools,
            FABRIC_TEST_FEATURE: self._bandwidth,
            UPGRADE_FEATURE: self._upgrades,
        }
        return ["logs", "weights", *(name for name, asked in offered.items() if asked is not None)]

    async def ask(self, question: Question) -> None:
        """Answer, at once or beside everything else."""
        if isinstance(question, ReadLog):
            chunk = await self._keeper.read_log(
                request_id=question.request_id,
                shard_id=question.shard_id,
                stream=question.stream,
                offset=question.offset,
                lines=question.lines,
            )
            self._give(self._logs, chunk)
        elif isinstance(question, ReadEngineHelp):
            self._ask_engine(question, self._engine_help)
        elif isinstance(question, AskFabric):
            self._ask_fabric(question, self._fabric_tools)
        elif isinstance(question, BandwidthQuestion):
            self._test_bandwidth(question, self._bandwidth)
        elif isinstance(question, Upgrade):
            await self._upgrade(question, self._upgrades)
        else:
            self._look_at_weights(question)

    def __bool__(self) -> bool:
        """True while answers wait for a report."""
        return any(kind.waiting for kind in self._kinds)

    def take(self, *, alone: bool) -> Answers:
        """The oldest answers, as many as one report should carry.

        A map goes only when the report carries nothing else (`alone`: no shards either), since it may fill it.
        """
        answers = Answers(
            logs=self._logs.take(),
            helps=self._helps.take(),
            weights=self._weights.take(),
            managers=self._managers.take(),
            bandwidths=self._bandwidths.take(),
            upgrades=self._told.take(),
        )
        if alone and not answers:
            answers.maps = self._maps.take()
        return answers

    def put_back(self, answers: Answers) -> None:
        """The report did not arrive: these are the oldest again."""
        self._logs.put_back(answers.logs)
        self._helps.put_back(answers.helps)
        self._weights.put_back(answers.weights)
        self._managers.put_back(answers.managers)
        self._maps.put_back(answers.maps)
        self._bandwidths.put_back(answers.bandwidths)
        self._told.put_back(answers.upgrades)

    def arrived(self, answers: Answers) -> None:
        """The report arrived."""
        if answers.upgrades:
            self._heard.set()

    async def drop(self) -> None:
        """The session is over: nobody waits for what it asked."""
        tasks = [task for kind in self._kinds for task in kind.running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._bandwidth is not None:
            await self._bandwidth.close()
        for kind in self._kinds:
            kind.waiting.clear()

    # Inside.

    @property
    def _kinds(self) -> tuple[_Kind[Any], ...]:
        return self._logs, self._helps, self._weights, self._managers, self._maps, self._bandwidths, self._told

    async def _upgrade(self, question: Upgrade, upgrades: Upgrades | None) -> None:
        """Begin it; one that was asked for before is given up."""
        if upgrades is None:
            sentence = "this agent does not replace its own program"
            refused = UpgradeTold(request_id=question.request_id, stage="refused", sentence=sentence)
            self._give(self._told, refused)
            return
        for earlier in list(self._told.running):
            earlier.cancel()
        await asyncio.gather(*self._told.running, return_exceptions=True)
        task = asyncio.create_task(upgrades.carry_out(question, self._tell_upgrade))
        self._told.running.add(task)
        task.add_done_callback(self._told.running.discard)

    async def _tell_upgrade(self, told: UpgradeTold) -> None:
        self._heard.clear()
        self._give(self._told, told)
        try:
            async with asyncio.timeout(HEARD_WAIT_S):
                await self._heard.wait()
        except TimeoutError:
            pass  # it goes on: the server asks again, or sees what came of it

    def _ask_engine(
        self, question: ReadEngineHelp, engine_help: Callable[[str, str], Awaitable[EngineHelp]] | None
    ) -> None:
        def failed(error: str) -> EngineHelp:
            return EngineHelp(request_id=question.request_id, engine=question.engine, error=error)

        running = len(self._helps.running)
        if engine_help is None:
            self._give(self._helps, failed("this agent does not ask engines for their help"))
        elif running >= HELPS_AT_ONCE_MAX:
            self._give(self._helps, failed(f"{running} engines are being asked here already; ask again"))
        else:
            error = f"the agent failed to ask {question.engine}; its log says why"
            self._begin(self._helps, engine_help(question.request_id, question.engine), failed(error))

    def _ask_fabric(
        self, question: AskFabric, fabric_tools: Callable[[AskFabric], Awaitable[FabricText]] | None
    ) -> None:
        def failed(error: str) -> FabricText:
            return FabricText(request_id=question.request_id, error=error)

        maps = question.what == "map"
        kind, most = (self._maps, MAPS_AT_ONCE_MAX) if maps else (self._managers, MANAGERS_AT_ONCE_MAX)
        if fabric_tools is None:
            self._give(kind, failed("this agent does not ask fabrics"))
        elif len(kind.running) >= most:
            doing = "maps a fabric" if maps else "asks for subnet managers"
            self._give(kind, failed(f"this node {doing} already; ask again in a minute"))
        else:
            where = f"{question.adapter} port {question.port}"
            error = f"the agent failed to ask the fabric behind {where}; its log says why"
            self._begin(kind, fabric_tools(question), failed(error))

    def _look_at_weights(self, question: ListWeights | RemoveWeights) -> None:
        def failed(error: str) -> WeightsAnswer:
            return WeightsAnswer(request_id=question.request_id, error=error)

        if len(self._weights.running) >= WEIGHTS_AT_ONCE_MAX:
            error = "this node is busy with earlier questions about its weights; ask again in a moment"
            self._give(self._weights, failed(error))
        else:
            error = "the agent failed to look at its weights; its log says why"
            self._begin(self._weights, self._keeper.weights(question), failed(error))

    def _test_bandwidth(self, question: BandwidthQuestion, bandwidth: BandwidthTester | None) -> None:
        def failed(error: str) -> BandwidthAnswer:
            return BandwidthAnswer(request_id=question.request_id, error=error)

        if bandwidth is None:
            self._give(self._bandwidths, failed("this agent does not test bandwidth"))
        elif len(self._bandwidths.running) >= BANDWIDTHS_AT_ONCE_MAX:
            self._give(self._bandwidths, failed("too many bandwidth tests are asked of this node; ask again"))
        else:
            error = "the agent failed to test bandwidth; its log says why"
            self._begin(self._bandwidths, bandwidth.answer(question), failed(error))

    def _begin(self, kind: _Kind[Q], asked: Awaitable[Q], failed: Q) -> None:
        """Answer beside everything else with what is asked, or, if that fails, with `failed`."""

        async def answer() -> None:
            try:
                self._give(kind, await asked)
            except Exception as exc:  # it does not raise; if it does, whoever asked still gets an answer
                log.exception("a question could not be answered", what=failed.error, error=repr(exc))
                self._give(kind, failed)

        task = asyncio.create_task(answer())
        kind.running.add(task)
        task.add_done_callback(kind.running.discard)

    def _give(self, kind: _Kind[A], answer: A) -> None:
        kind.waiting.append(answer)
        self._news()
