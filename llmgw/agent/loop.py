"""The conversation with the server: register, poll, report, for ever.

It does no I/O of its own: transport, clock and randomness are given, so that a simulator runs this very loop
on a virtual clock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import structlog

from llmgw import __version__
from llmgw.agent.answers import Answering, Answers
from llmgw.agent.conversation import (
    Backoff,
    BandwidthTester,
    Clock,
    Keeper,
    Life,
    Transport,
    TransportError,
    Upgrades,
)
from llmgw.messages.agent import (
    SHARDS_PER_NODE_MAX,
    Command,
    EngineHelp,
    HeldShard,
    Inventory,
    Poll,
    Refusal,
    Register,
    Registered,
    Report,
    Reported,
    StartShard,
    StopShard,
)
from llmgw.messages.fabric import AskFabric, FabricText

log = structlog.get_logger("agent")

FEATURES = ["start", "stop", "renew"]
CALL_TIMEOUT_S = 30.0
# Beyond the wait that the server promised: its own work, and a slow network.
POLL_MARGIN_S = 15.0
POLL_WAIT_S_MAX = 120.0
# While nothing works, the log says so this often and not at every try.
COMPLAIN_EVERY_S = 60.0

T = TypeVar("T")


class SessionEnded(Exception):
    """The server wants a new registration."""


class Refused(Exception):
    """The server answered, and not with 200."""

    def __init__(self, status: int, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.status = status
        self.refusal = refusal


class RawCommands(msgspec.Struct, kw_only=True):
    """Commands before they are understood, so that one of a newer server does not hide the others."""

    commands: list[msgspec.Raw] = []


class _Sequenced(msgspec.Struct):
    seq: int


class AgentLoop:
    """One agent's side of the conversation. `run` returns only by being cancelled.

    `inventory` reads what the node has, `engine_help` (of a request id and an engine) asks an engine for its help
    text, and `fabric_tools` asks the fabric behind a port; all in bounded time and without raising. `bandwidth`
    runs the ends of bandwidth tests, `upgrades` replaces this program. Without one of the last four its
    feature is not offered. `contact` is told after each call that matters whether the server answered well
    (None), else what the trouble is.
    """

    def __init__(
        self,
        *,
        node_id: str,
        life: Life,
        transport: Transport,
        keeper: Keeper,
        inventory: Callable[[], Awaitable[Inventory]],
        clock: Clock,
        randomness: random.Random,
        heartbeat_interval_s: float,
        reconnect_base_s: float,
        reconnect_max_s: float,
        engine_help: Callable[[str, str], Awaitable[EngineHelp]] | None = None,
        fabric_tools: Callable[[AskFabric], Awaitable[FabricText]] | None = None,
        bandwidth: BandwidthTester | None = None,
        upgrades: Upgrades | None = None,
        features: list[str] | None = None,
        version: str = __version__,
        contact: Callable[[str | None], None] = lambda trouble: None,
    ) -> None:
        self._node_id = node_id
        self._life = life
        self._transport = transport
        self._keeper = keeper
        self._inventory = inventory
        self._clock = clock
        self._random = randomness
        self._heartbeat_interval_s = heartbeat_interval_s
        self._reconnect_base_s = reconnect_base_s
        self._reconnect_max_s = reconnect_max_s
        self._version = version
        self._counter = 0
        self._news = asyncio.Event()
        # Only ids: what is sent is each shard's status at that moment, so the latest version wins by itself.
        self._changed: set[str] = set()
        self._answering = Answering(keeper, engine_help, fabric_tools, self._news.set, bandwidth, upgrades)
        self._upgrades = upgrades
        self._features = [*FEATURES, *self._answering.features] if features is None else features
        self._contact = contact
        self._complained_at: float | None = None
        self._complained_of: tuple[str, type[Exception], int | None] | None = None
        self.session: str | None = None
        """The current session; None while there is none."""
        keeper.listen(self._on_change)

    async def run(self) -> None:
        """Register, converse until the session ends, and again."""
        between = self._backoff()
        while True:
            registered = await self._register()
            began = self._clock.now()
            try:
                await self._converse(registered)
            finally:
                self.session = None
                await self._answering.drop()
            if self._clock.now() - began >= self._reconnect_max_s:
                between.reset()
            # At once, but not the whole fleet in one instant; slower when sessions keep ending young.
            await self._clock.sleep(between.next_s())

    def _on_change(self, shard_id: str) -> None:
        self._changed.add(shard_id)
        self._news.set()

    def _backoff(self) -> Backoff:
        return Backoff(self._reconnect_base_s, self._reconnect_max_s, self._random)

    async def _register(self) -> Registered:
        """Until the server takes the registration."""
        backoff = self._backoff()
        while True:
            inventory = await self._inventory()
            self._counter += 1
            # Changes after this line are told again after the registration; those before it are in the list.
            self._changed.clear()
            held = await self._keeper.held()
            message = Register(
                node_id=self._node_id,
                boot_id=self._life.boot_id,
                instance=self._life.instance,
                instance_started_at=self._life.instance_started_at,
                counter=self._counter,
                version=self._version,
                features=self._features,
                inventory=inventory,
                held=held[:SHARDS_PER_NODE_MAX],
                last_upgrade=None if self._upgrades is None else self._upgrades.last(),
            )
            try:
                registered = await self._call("register", message, Registered, CALL_TIMEOUT_S)
            except (TransportError, Refused, SessionEnded) as exc:
                self._complain("the server does not take the registration", exc)
                if self._upgrades is not None and isinstance(exc, Refused):
                    self._upgrades.refused(str(exc))
                elif self._upgrades is not None and isinstance(exc, TransportError):
                    self._upgrades.unheard(str(exc))
                await self._clock.sleep(backoff.next_s())
                continue
            self._heard()
            self.session = registered.session
            if self._upgrades is not None:
                self._upgrades.registered()
            log.info("registered", held=len(held), server_version=registered.server_version)
            return registered

    async def _converse(self, registered: Registered) -> None:
        """Poll and report until the session ends."""
        tasks = [
            asyncio.ensure_future(part)
            for part in (
                self._poll_forever(registered),
                self._heartbeat_forever(registered),
                self._report_news_forever(registered),
            )
        ]
        # Not a TaskGroup: that one swallows a cancellation which comes while it ends its tasks (seen with Python
        # 3.11), and an agent that was stopped together with its server went on for ever.
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, Exception) and not isinstance(outcome, SessionEnded):
                raise outcome
        reason = next((str(outcome) for outcome in ended if isinstance(outcome, SessionEnded)), None)
        log.info("the session has ended", reason=reason)

    # Commands.

    async def _poll_forever(self, registered: Registered) -> None:
        session = registered.session
        timeout_s = min(max(registered.poll_wait_s, 0.0), POLL_WAIT_S_MAX) + POLL_MARGIN_S
        backoff = self._backoff()
        acked = 0
        while True:
            began = self._clock.now()
            try:
                answer = await self._call(
                    "poll", Poll(session=session, acked=acked), RawCommands, timeout_s, in_session=True
                )
            except (TransportError, Refused) as exc:
                self._complain("polling fails", exc)
                await self._clock.sleep(backoff.next_s())
                continue
            backoff.reset()
            self._heard()
            before = acked
            for raw in answer.commands:
                acked = await self._carry_out(raw, acked)
            if answer.commands and (self._changed or self._answering):
                # What a command changed is told before it is acknowledged: a GPU is never both unnamed by a
                # command and not yet reported as held. A map may take its time on the wire, and no start waits.
                try:
                    await self._report_news(registered, maps=False)
                except (TransportError, Refused) as exc:
                    self._complain("reporting fails", exc)
            if acked == before and self._clock.now() - began < min(1.0, registered.poll_wait_s / 2):
                # An empty answer at once: a server in trouble, or one that repeats itself. Not a busy loop.
                await self._clock.sleep(min(1.0, self._reconnect_base_s) * self._random.uniform(0.1, 0.5))

    async def _carry_out(self, raw: msgspec.Raw, acked: int) -> int:
        """Carry out one command unless it was; return the new highest sequence number."""
        command: Command | None = None
        try:
            seq = msgspec.json.decode(raw, type=_Sequenced).seq
        except msgspec.MsgspecError as exc:
            log.error("a command has no sequence number and is passed over", error=str(exc))
            return acked
        if seq <= acked:
            return acked
        try:
            command = msgspec.json.decode(raw, type=Command)
        except msgspec.MsgspecError as exc:
            log.error("a command is not understood and is passed over", seq=seq, error=str(exc))
            return seq
        try:
            await self._obey(command)
        except Exception as exc:  # the keeper does not raise; if it does, the others must still be heard
            log.exception("a command failed", command=type(command).__name__, error=repr(exc))
        return seq

    async def _obey(self, command: Command) -> None:
        if isinstance(command, StartShard):
            log.info("start", shard=command.spec.shard_id, engine=command.spec.engine)
            await self._keeper.start(command.spec)
            self._on_change(command.spec.shard_id)
        elif isinstance(command, StopShard):
            log.info("stop", shard=command.shard_id, reason=command.reason)
            await self._keeper.stop(command.shard_id, command.reason)
            self._on_change(command.shard_id)
        else:
            await self._answering.ask(command)

    # Reports.

    async def _heartbeat_forever(self, registered: Registered) -> None:
        """The whole truth at every beat; a beat that fails is not repeated, the next one says it all."""
        while True:
            await self._clock.sleep(self._heartbeat_interval_s)
            inventory = await self._inventory()
            told, self._changed = self._changed, set()
            try:
                shards = await self._keeper.held()
                await self._report(registered, shards, inventory=inventory)
            except (TransportError, Refused) as exc:
                self._changed |= told
                self._news.set()
                self._complain("reporting fails", exc)

    async def _report_news_forever(self, registered: Registered) -> None:
        """Transitions and answers at once; after a failure, later and together."""
        backoff = self._backoff()
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._report_news(registered, maps=True)
            except (TransportError, Refused) as exc:
                self._complain("reporting fails", exc)
                await self._clock.sleep(backoff.next_s())
                self._news.set()
            else:
                backoff.reset()

    async def _report_news(self, registered: Registered, *, maps: bool) -> None:
        told, self._changed = self._changed, set()
        answers = self._answering.take(alone=maps and not told)
        if not told and not answers:
            return
        try:
            shards = [shard for shard in await self._keeper.held() if shard.spec.shard_id in told]
            await self._report(registered, shards, answers=answers)
        except BaseException:
            self._changed |= told
            self._answering.put_back(answers)
            raise
        if self._answering:
            self._news.set()

    async def _report(
        self,
        registered: Registered,
        shards: list[HeldShard],
        *,
        inventory: Inventory | None = None,
        answers: Answers | None = None,
    ) -> None:
        answers = answers or Answers()
        message = Report(
            session=registered.session,
            inventory=inventory,
            shards=shards[:SHARDS_PER_NODE_MAX],
            logs=answers.logs,
            helps=answers.helps,
            weights=answers.weights,
            fabrics=[*answers.managers, *answers.maps],
            bandwidths=answers.bandwidths,
            upgrades=answers.upgrades,
        )
        reported = await self._call("report", message, Reported, CALL_TIMEOUT_S, in_session=True)
        self._heard()
        self._answering.arrived(answers)
        if reported.forget:
            await self._keeper.forget(reported.forget)

    # One call.

    async def _call(
        self, name: str, message: msgspec.Struct, kind: type[T], timeout_s: float, *, in_session: bool = False
    ) -> T:
        """Send one message. Raises TransportError, Refused, or SessionEnded where a session is at stake."""
        status, body = await self._transport.call(f"/agent/v1/{name}", msgspec.json.encode(message), timeout_s)
        if status == 200:
            try:
                return msgspec.json.decode(body, type=kind)
            except msgspec.MsgspecError as exc:
                raise TransportError(
                    f"the answer to {name} is not what a llmgw server says ({exc}); is another program there?"
                ) from None
        refusal = _refusal(status, body)
        if status == 410 or (in_session and status in (401, 403)):
            if status != 410:
                self._complain("the server refuses this node", Refused(status, refusal))
            raise SessionEnded(refusal.message)
        raise Refused(status, refusal)

    def _heard(self) -> None:
        """The server has answered as it should."""
        self._complained_at = None
        self._contact(None)

    def _complain(self, what: str, exc: Exception) -> None:
        """Say it loudly, once a minute, and at once when it is another trouble than the one said last."""
        self._contact(f"{what}: {exc}")
        now = self._clock.now()
        status = exc.status if isinstance(exc, Refused) else None
        kind = (what, type(exc), status)
        repeated = self._complained_at is not None and now - self._complained_at < COMPLAIN_EVERY_S
        if repeated and kind == self._complained_of:
            return
        self._complained_at, self._complained_of = now, kind
        log.error(what, node=self._node_id, why=str(exc), **({"status": status} if status else {}))


def _refusal(status: int, body: bytes) -> Refusal:
    try:
        return msgspec.json.decode(body, type=Refusal)
    except msgspec.MsgspecError:
        shown = body[:200].decode("utf-8", "replace").strip()
        return Refusal(code="unknown", message=f"the server answered {status}: {shown or 'nothing else'}")
