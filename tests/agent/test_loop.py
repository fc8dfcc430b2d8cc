"""The conversation against a scripted server in memory, on a virtual clock."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import looptime
import msgspec
import pytest

from llmgw.agent.conversation import Backoff, Life, TransportError
from llmgw.agent.loop import AgentLoop
from llmgw.messages.agent import (
    Command,
    Commands,
    EngineHelp,
    HeldShard,
    Inventory,
    ListWeights,
    LogChunk,
    Poll,
    ReadEngineHelp,
    ReadLog,
    Refusal,
    Register,
    Registered,
    RemoveWeights,
    Report,
    Reported,
    ShardSpec,
    StartShard,
    StopShard,
    WeightsAnswer,
)
from llmgw.messages.fabric import AskFabric, FabricText
from llmgw.messages.upgrade import LastUpgrade, Upgrade, UpgradeTold
from tests.agent.fakes import make_spec
from tests.agent.waiting import until as eventually

Answer = tuple[int, msgspec.Struct | bytes]
HEARTBEAT_S = 5.0


class ScriptedServer:
    """Answers like a server; a test overrides a call by putting answers or exceptions in front."""

    def __init__(self) -> None:
        self.first: dict[str, list[Answer | Exception | str]] = {"register": [], "poll": [], "report": []}
        self.always: dict[str, Answer | Exception] = {}
        self.registers: list[Register] = []
        self.polls: list[Poll] = []
        self.reports: list[Report] = []
        self.calls: list[tuple[float, str]] = []
        self.commands: list[Command] = []
        self.session = 0
        self.forget: list[str] = []

    async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        name = path.removeprefix("/agent/v1/")
        self.calls.append((asyncio.get_running_loop().time(), name))
        await asyncio.sleep(0.01)
        scripted: Any = self.first[name].pop(0) if self.first[name] else self.always.get(name)
        if scripted == "hang":
            await asyncio.sleep(timeout_s)
            raise TransportError("no answer in time")
        if isinstance(scripted, Exception):
            raise scripted
        if scripted == "lost":  # carried out, and the answer does not arrive
            await self.answer(name, body)
            raise TransportError("the connection broke")
        status, message = scripted if scripted is not None else await self.answer(name, body)
        return status, message if isinstance(message, bytes) else msgspec.json.encode(message)

    async def answer(self, name: str, body: bytes) -> Answer:
        if name == "register":
            self.registers.append(msgspec.json.decode(body, type=Register))
            self.session += 1
            self.commands.clear()  # they die with the session they were made for
            return 200, Registered(session=f"s{self.session}", server_version="1", poll_wait_s=25)
        message = msgspec.json.decode(body, type=Poll if name == "poll" else Report)
        if message.session != f"s{self.session}":
            return 410, Refusal(code="session-unknown", message="register again")
        if isinstance(message, Report):
            self.reports.append(message)
            return 200, Reported(forget=self.forget)
        self.polls.append(message)
        for _ in range(250):
            waiting = [command for command in self.commands if command.seq > message.acked]
            if waiting:
                return 200, Commands(commands=waiting)
            await asyncio.sleep(0.1)
        return 200, Commands()


class ListKeeper:
    """Keeps shards in a list and remembers what it was told."""

    def __init__(self) -> None:
        self.shards: dict[str, HeldShard] = {}
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.forgotten: list[str] = []
        self.listener: Callable[[str], None] = lambda shard_id: None
        self.disk = asyncio.Event()

    def listen(self, listener: Callable[[str], None]) -> None:
        self.listener = listener

    async def held(self) -> list[HeldShard]:
        return list(self.shards.values())

    async def start(self, spec: ShardSpec) -> None:
        self.started.append(spec.shard_id)
        self.shards.setdefault(spec.shard_id, HeldShard(spec=spec, phase="starting"))

    async def stop(self, shard_id: str, reason: str) -> None:
        self.stopped.append(shard_id)

    async def forget(self, shard_ids: list[str]) -> None:
        self.forgotten += shard_ids

    async def read_log(self, **asked: Any) -> LogChunk:
        return LogChunk(request_id=asked["request_id"], shard_id=asked["shard_id"], text="out")

    async def weights(self, command: ListWeights | RemoveWeights) -> WeightsAnswer:
        await self.disk.wait()
        return WeightsAnswer(request_id=command.request_id, removed=getattr(command, "names", []))

    def move(self, shard_id: str, phase: Any) -> None:
        shard = self.shards[shard_id]
        self.shards[shard_id] = msgspec.structs.replace(shard, phase=phase, version=shard.version + 1)
        self.listener(shard_id)


class ScriptedUpgrades:
    """Tells what it was asked for, and that it switches; remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.asked: list[str] = []
        self.given_up: list[str] = []
        self.switches = asyncio.Event()

    def last(self) -> LastUpgrade | None:
        return LastUpgrade(upgrade_id="u0", sha256="ab" * 32, version="1", outcome="settled")

    def registered(self) -> None:
        self.heard.append("registered")

    def refused(self, sentence: str) -> None:
        self.heard.append(sentence)

    def unheard(self, sentence: str) -> None:
        self.heard.append(f"nobody: {sentence}")

    async def carry_out(self, upgrade: Upgrade, tell: Callable[[UpgradeTold], Awaitable[None]]) -> None:
        self.asked.append(upgrade.request_id)
        try:
            await self.switches.wait()
        except asyncio.CancelledError:
            self.given_up.append(upgrade.request_id)
            raise
        await tell(UpgradeTold(request_id=upgrade.request_id, stage="switching"))
        self.heard.append("told")


class LoopClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Conversation:
    def __init__(self) -> None:
        self.server = ScriptedServer()
        self.keeper = ListKeeper()
        self.inventories = 0
        self.asking = 0
        self.upgrades = ScriptedUpgrades()
        self.loop = AgentLoop(
            node_id="node01",
            life=Life(boot_id="boot", instance="one", instance_started_at=12.5),
            transport=self.server,
            keeper=self.keeper,
            inventory=self.read_inventory,
            engine_help=self.ask_engine,
            fabric_tools=self.ask_fabric,
            upgrades=self.upgrades,
            clock=LoopClock(),
            randomness=random.Random(7),
            heartbeat_interval_s=HEARTBEAT_S,
            reconnect_base_s=1.0,
            reconnect_max_s=30.0,
        )

    async def read_inventory(self) -> Inventory:
        self.inventories += 1
        return Inventory()

    async def ask_engine(self, request_id: str, engine: str) -> EngineHelp:
        self.asking += 1
        await asyncio.sleep(30)
        if engine == "broken":
            raise RuntimeError("a defect")
        return EngineHelp(request_id=request_id, engine=engine, text="usage: it")

    async def ask_fabric(self, question: AskFabric) -> FabricText:
        await asyncio.sleep(30)
        return FabricText(request_id=question.request_id, output=b"text", exit_code=0)

    def times(self, name: str) -> list[float]:
        return [at for at, called in self.server.calls if called == name]


def converse(test: Callable[[Conversation], Awaitable[None]], *held: HeldShard) -> None:
    """Run the loop beside the test, in virtual time, with these shards held from the start."""

    async def both() -> None:
        conversation = Conversation()
        conversation.keeper.shards = {shard.spec.shard_id: shard for shard in held}
        running = asyncio.create_task(conversation.loop.run())
        try:
            await asyncio.wait_for(test(conversation), 7200)
            assert not running.done(), "the loop never ends by itself"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    new_loop = looptime.make_event_loop_class(asyncio.SelectorEventLoop)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(both())


async def until(condition: Callable[[], object], deadline_s: float = 600) -> None:
    await eventually(condition, "the conversation got there", deadline_s)


def test_a_registration_says_who_what_and_everything_held() -> None:
    async def test(it: Conversation) -> None:
        await until(lambda: it.server.polls)
        [register] = it.server.registers
        assert (register.node_id, register.boot_id, register.instance) == ("node01", "boot", "one")
        assert (register.instance_started_at, register.counter) == (12.5, 1)
        assert [shard.spec.shard_id for shard in register.held] == ["a"]
        assert {"start", "stop", "logs", "renew"} <= set(register.features)
        assert it.loop.session == "s1"

    converse(test, HeldShard(spec=make_spec("a"), phase="ready"))


def test_an_unknown_session_is_answered_by_registering_again_at_once() -> None:
    async def test(it: Conversation) -> None:
        await until(lambda: it.server.polls)
        it.server.session = 50  # the server was started anew
        began = asyncio.get_running_loop().time()
        await until(lambda: len(it.server.registers) == 2)
        assert asyncio.get_running_loop().time() - began < HEARTBEAT_S + 2
        assert it.server.registers[1].counter == 2
        await until(lambda: it.server.polls[-1].session == "s51")

    converse(test)


def test_sessions_that_keep_ending_do_not_make_a_busy_loop() -> None:
    async def test(it: Conversation) -> None:
        it.server.always["poll"] = (410, Refusal(code="session-unknown", message="register again"))
        await asyncio.sleep(600)
        assert 15 < len(it.server.registers) < 60

    converse(test)


def test_while_the_server_is_away_the_agent_tries_for_ever_and_ever_slower() -> None:
    async def test(it: Conversation) -> None:
        it.server.always["register"] = TransportError("nothing listens")
        await asyncio.sleep(3600)
        times = it.times("register")
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert gaps[0] < 1.5
        assert all(14 < gap < 31 for gap in gaps[6:])
        assert len(set(gaps[6:])) > 10  # jittered
        del it.server.always["register"]
        await until(lambda: it.server.polls, deadline_s=31)

    converse(test)


def test_another_trouble_is_said_at_once_and_the_same_one_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr("llmgw.agent.loop.log.error", lambda what, **facts: said.append(facts["why"]))

    async def test(it: Conversation) -> None:
        away = TransportError("nothing listens")
        broken = (500, Refusal(code="internal", message="a defect"))
        it.server.first["register"] = [away, away, broken, broken, away]
        await until(lambda: it.server.polls)
        assert said == ["nothing listens", "a defect", "nothing listens"]

    converse(test)


def test_a_refused_identity_is_tried_again_and_never_ends_the_agent() -> None:
    async def test(it: Conversation) -> None:
        refusal = Refusal(code="identity", message="the certificate is for node02, and node01 is claimed")
        it.server.always["register"] = (403, refusal)
        await asyncio.sleep(1000)
        assert len(it.times("register")) > 30
        del it.server.always["register"]
        await until(lambda: it.server.polls, deadline_s=31)
        # Revoked in the middle of a session: the same.
        it.server.first["report"] = [(403, refusal)]
        await until(lambda: len(it.server.registers) == 2, deadline_s=60)

    converse(test)


def test_answers_that_no_llmgw_server_gives_count_as_no_answer() -> None:
    async def test(it: Conversation) -> None:
        it.server.first["register"] = [(200, b"<html>Welcome</html>"), (502, b"Bad Gateway"), (429, b"")]
        await until(lambda: it.server.polls)
        assert len(it.times("register")) == 4

    converse(test)


def test_commands_are_carried_out_once_reported_and_then_acknowledged() -> None:
    async def test(it: Conversation) -> None:
        await until(lambda: it.server.polls)
        it.server.commands += [
            StartShard(seq=1, spec=make_spec("a")),
            StopShard(seq=2, shard_id="b", reason="surplus"),
        ]
        await until(lambda: it.server.polls[-1].acked == 2)
        assert (it.keeper.started, it.keeper.stopped) == (["a"], ["b"])
        calls = [name for _, name in it.server.calls]
        # The start is reported before the poll that acknowledges it.
        assert any(shard.spec.shard_id == "a" for report in it.server.reports for shard in report.shards)
        assert "report" in calls[calls.index("poll") + 1 :]
        last_poll = len(calls) - 1 - calls[::-1].index("poll")
        assert "report" in calls[:last_poll]

    converse(test)


def test_a_lost_answer_is_asked_for_again_and_duplicates_are_harmless() -> None:
    async def test(it: Conversation) -> None:
        it.server.first["register"] = ["lost"]
        await until(lambda: it.server.polls)
        assert [register.counter for register in it.server.registers] == [1, 2]
        it.server.commands.append(StartShard(seq=1, spec=make_spec("a")))
        it.server.first["poll"] = ["lost"]
        await until(lambda: it.keeper.started)
        it.server.commands.append(StartShard(seq=1, spec=make_spec("a")))
        it.server.first["poll"] = [(200, Commands(commands=[StartShard(seq=1, spec=make_spec("a"))]))] * 3
        await asyncio.sleep(120)
        assert it.keeper.started == ["a"]
        assert it.server.polls[-1].acked == 1

    converse(test)


def test_a_poll_that_hangs_ends_by_its_own_deadline_and_heartbeats_go_on() -> None:
    async def test(it: Conversation) -> None:
        it.server.first["poll"] = ["hang"]
        await until(lambda: it.server.polls)
        first, second = it.times("poll")[:2]
        assert 25 < second - first < 45
        assert len(it.server.reports) >= 6

    converse(test)


def test_every_heartbeat_carries_a_fresh_inventory_and_everything_held() -> None:
    async def test(it: Conversation) -> None:
        it.keeper.shards["a"] = HeldShard(spec=make_spec("a"), phase="ready")
        await until(lambda: len(it.server.reports) >= 3)
        assert all(report.inventory is not None and len(report.shards) == 1 for report in it.server.reports)
        assert it.inventories >= 4
        gaps = [b - a for a, b in itertools.pairwise(it.times("report"))]
        assert all(abs(gap - HEARTBEAT_S) < 0.5 for gap in gaps)

    converse(test)


def test_a_transition_is_reported_at_once() -> None:
    async def test(it: Conversation) -> None:
        it.keeper.shards["a"] = HeldShard(spec=make_spec("a"), phase="starting")
        await until(lambda: it.server.polls)
        began = asyncio.get_running_loop().time()
        it.keeper.move("a", "ready")
        await until(lambda: it.server.reports)
        assert asyncio.get_running_loop().time() - began < 0.2
        assert [shard.phase for shard in it.server.reports[0].shards] == ["ready"]
        assert it.server.reports[0].inventory is None

    converse(test)


def test_transitions_of_an_outage_arrive_together_in_their_latest_version() -> None:
    async def test(it: Conversation) -> None:
        for shard_id in ("a", "b"):
            it.keeper.shards[shard_id] = HeldShard(spec=make_spec(shard_id), phase="starting")
        await until(lambda: it.server.polls)
        it.server.always["report"] = TransportError("the network is gone")
        it.keeper.move("a", "ready")
        await asyncio.sleep(2)
        it.keeper.move("a", "failed")
        it.keeper.move("b", "ready")
        await asyncio.sleep(20)
        assert it.server.reports == []
        del it.server.always["report"]
        await until(lambda: it.server.reports, deadline_s=31)
        phases = {shard.spec.shard_id: (shard.phase, shard.version) for shard in it.server.reports[0].shards}
        assert phases == {"a": ("failed", 3), "b": ("ready", 2)}

    converse(test)


def test_output_that_was_asked_for_is_sent_and_forgotten_shards_are_dropped() -> None:
    async def test(it: Conversation) -> None:
        await until(lambda: it.server.polls)
        it.server.forget = ["old"]
        it.server.commands.append(ReadLog(seq=1, request_id="q", shard_id="a"))
        await until(lambda: it.server.reports)
        [chunk] = it.server.reports[0].logs
        assert (chunk.request_id, chunk.text) == ("q", "out")
        await until(lambda: it.keeper.forgotten)
        assert it.keeper.forgotten[0] == "old"

    converse(test)


def test_an_engine_is_asked_for_its_help_while_other_commands_go_on() -> None:
    async def test(it: Conversation) -> None:
        await until(lambda: it.server.polls)
        assert "engine_help" in it.server.registers[0].features
        it.server.commands.append(ReadEngineHelp(seq=1, request_id="q", engine="vllm"))
        it.server.commands.append(StartShard(seq=2, spec=make_spec("a")))
        await until(lambda: it.keeper.started == ["a"], 10)
        await until(lambda: it.server.polls[-1].acked == 2, 10)
        assert not helps(it)
        await until(lambda: helps(it))
        assert [(told.request_id, told.text, told.error) for told in helps(it)] == [("q", "usage: it", None)]

    converse(test)


def test_more_engines_than_two_at_once_and_a_failure_are_answered_with_sentences() -> None:
    async def test(it: Conversation) -> None:
        await until(lambda: it.server.polls)
        it.server.commands += [
            ReadEngineHelp(seq=at, request_id=f"q{at}", engine=engine)
            for at, engine in enumerate(["vllm", "broken", "sglang"], 1)
        ]
        await until(lambda: helps(it), 10)
        assert (helps(it)[0].request_id, "ask again" in (helps(it)[0].error or "")) == ("q3", True)
        await until(lambda: len(helps(it)) == 3)
        errors = {told.request_id: told.error for told in helps(it)}
        assert errors["q1"] is None
        assert "its log says why" in (errors["q2"] or "")
        assert it.asking == 2
        assert all(len(report.helps) <= 1 for report in it.server.reports)

    converse(test)


def test_a_look_at_the_disk_holds_up_no_stop_and_is_answered_when_it_is_done() -> None:
    async def test(it: Conversation) -> None:
        await until(lambda: it.server.polls)
        it.server.commands += [
            *(ListWeights(seq=number, request_id=f"q{number}") for number in range(1, 5)),
            RemoveWeights(seq=5, request_id="q5", names=["x"]),
            StopShard(seq=6, shard_id="a", reason="scaled down"),
        ]
        await until(lambda: it.keeper.stopped == ["a"])
        await until(lambda: any(report.weights for report in it.server.reports))
        [refused] = [answer for report in it.server.reports for answer in report.weights]
        assert refused.request_id == "q5"
        assert "busy with earlier questions" in (refused.error or "")
        it.keeper.disk.set()

        def answers() -> dict[str, list[str]]:
            return {
                answer.request_id: answer.removed for report in it.server.reports for answer in report.weights
            }

        await until(lambda: len(answers()) == 5)
        it.server.commands.append(RemoveWeights(seq=7, request_id="q7", names=["x"]))
        await until(lambda: len(answers()) == 6)
        assert answers()["q7"] == ["x"]

    converse(test)


def test_an_answer_that_did_not_arrive_is_sent_again() -> None:
    async def test(it: Conversation) -> None:
        await until(lambda: it.server.polls)
        it.server.first["report"] = [TransportError("away")] * 12
        it.server.commands.append(ReadEngineHelp(seq=1, request_id="q", engine="vllm"))
        await until(lambda: helps(it))

    converse(test)


def ask_fabric(it: Conversation, *what: Any) -> None:
    it.server.commands += [
        AskFabric(seq=seq, request_id=f"q{seq}", what=each, adapter="mlx5_0", port=1)
        for seq, each in enumerate(what, len(it.server.commands) + 1)
    ]


def fabrics(it: Conversation) -> dict[str, FabricText]:
    return {told.request_id: told for report in it.server.reports for told in report.fabrics}


def test_one_map_and_two_questions_for_managers_run_at_once_and_more_are_told_to_wait() -> None:
    async def test(it: Conversation) -> None:
        await until(lambda: it.server.polls)
        assert "fabric_tools" in it.server.registers[0].features
        ask_fabric(it, "map", "map", "managers", "managers", "managers")
        await until(lambda: len(fabrics(it)) == 2, 10)
        assert {name: "ask again" in (told.error or "") for name, told in fabrics(it).items()} == {
            "q2": True,
            "q5": True,
        }
        await until(lambda: len(fabrics(it)) == 5)
        assert [fabrics(it)[name].output for name in ("q1", "q3", "q4")] == [b"text"] * 3
        assert all(len(report.fabrics) <= 1 for report in it.server.reports)
        ask_fabric(it, "map")
        await until(lambda: fabrics(it)["q6"].output == b"text" if "q6" in fabrics(it) else False)

    converse(test)


def test_a_map_travels_alone_and_comes_again_when_it_did_not_arrive() -> None:
    async def test(it: Conversation) -> None:
        await until(lambda: it.server.polls)
        ask_fabric(it, "map")
        await asyncio.sleep(20)
        it.server.always["report"] = TransportError("away")
        await asyncio.sleep(60)
        it.server.commands.append(StartShard(seq=2, spec=make_spec("a")))
        it.server.commands.append(ReadEngineHelp(seq=3, request_id="h", engine="vllm"))
        await asyncio.sleep(60)
        del it.server.always["report"]
        await until(lambda: fabrics(it) and helps(it))
        (carrier,) = [report for report in it.server.reports if report.fabrics]
        assert carrier.fabrics[0].output == b"text"
        assert (carrier.shards, carrier.helps, carrier.inventory) == ([], [], None)

    converse(test)


def test_a_fabric_that_was_asked_for_an_ended_session_is_not_answered_in_the_next() -> None:
    async def test(it: Conversation) -> None:
        await until(lambda: it.server.polls)
        ask_fabric(it, "map", "managers")
        await asyncio.sleep(10)
        it.server.first["poll"] = [(410, Refusal(code="session-unknown", message="register again"))]
        await until(lambda: len(it.server.registers) == 2)
        await asyncio.sleep(120)
        assert not fabrics(it)

    converse(test)


def helps(it: Conversation) -> list[EngineHelp]:
    return [told for report in it.server.reports for told in report.helps]


def test_a_command_of_a_newer_server_does_not_hide_the_others() -> None:
    async def test(it: Conversation) -> None:
        await until(lambda: it.server.polls)
        start = msgspec.json.encode(StartShard(seq=2, spec=make_spec("a")))
        body = b'{"commands": [{"type": "dance", "seq": 1}, ' + start + b"]}"
        it.server.session = 50
        it.server.first["poll"] = [(200, body)]
        await until(lambda: it.keeper.started == ["a"])
        await until(lambda: it.server.polls[-1].acked == 2)

    converse(test)


def test_waits_double_up_to_the_longest_and_are_jittered() -> None:
    backoff = Backoff(1.0, 30.0, random.Random(1))
    waits = [backoff.next_s() for _ in range(100)]
    assert 0.5 <= waits[0] <= 1
    assert 2 <= waits[2] <= 4
    assert all(15 <= wait <= 30 for wait in waits[5:])
    backoff.reset()
    assert backoff.next_s() <= 1


def test_an_agent_that_is_ended_in_the_moment_in_which_its_session_ends_does_end() -> None:
    class Stopping(ScriptedServer):
        """A server that stops: it ends the session, and its connections take a moment to close."""

        closing: asyncio.Event

        async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
            if path.endswith("report"):
                return 410, msgspec.json.encode(Refusal(code="session", message="register again"))
            try:
                return await super().call(path, body, timeout_s)
            finally:
                if path.endswith("poll"):
                    self.closing.set()
                    await asyncio.sleep(0.1)

    async def test(it: Conversation) -> None:
        it.loop._transport = server = Stopping()
        server.closing = asyncio.Event()
        running = asyncio.create_task(it.loop.run())
        await server.closing.wait()
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=150)
        assert done, "it goes on"

    converse(test)


def upgrade_to(number: int) -> Upgrade:
    return Upgrade(
        seq=number,
        request_id=f"u{number}",
        name="llmgw-1.0-py3-none-any.whl",
        sha256="ab" * 32,
        size_bytes=1,
        signature="c2ln",
    )


def test_how_the_last_upgrade_ended_is_registered_and_a_version_hears_whether_it_was_taken() -> None:
    async def test(talk: Conversation) -> None:
        talk.server.first["register"] = [
            (409, Refusal(code="version", message="too old")),
            TransportError("gone"),
        ]
        await until(lambda: talk.loop.session)
        assert talk.server.registers[-1].last_upgrade == talk.upgrades.last()
        assert talk.upgrades.heard == ["too old", "nobody: gone", "registered"]

    converse(test)


def test_an_upgrade_goes_on_beside_everything_else_and_knows_that_its_last_word_arrived() -> None:
    async def test(talk: Conversation) -> None:
        await until(lambda: talk.loop.session)
        talk.server.commands.append(upgrade_to(1))
        await until(lambda: talk.server.polls and talk.server.polls[-1].acked == 1)
        assert talk.upgrades.asked == ["u1"]
        talk.server.first["report"] = [TransportError("the connection broke")]
        talk.upgrades.switches.set()
        await until(lambda: "told" in talk.upgrades.heard)
        told = [each for report in talk.server.reports for each in report.upgrades]
        assert [(each.request_id, each.stage) for each in told] == [("u1", "switching")]

    converse(test)


def test_a_later_upgrade_and_the_end_of_the_session_give_an_upgrade_up() -> None:
    async def test(talk: Conversation) -> None:
        await until(lambda: talk.loop.session)
        talk.server.commands.append(upgrade_to(1))
        await until(lambda: talk.upgrades.asked == ["u1"])
        talk.server.commands.append(upgrade_to(2))
        await until(lambda: talk.upgrades.asked == ["u1", "u2"])
        assert talk.upgrades.given_up == ["u1"]
        talk.server.session += 1
        await until(lambda: talk.upgrades.given_up == ["u1", "u2"])

    converse(test)
