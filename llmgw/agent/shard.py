"""One shard from its spec to its end: one asyncio task, and a record on disk that a later agent can go on from.

It knows no engine by name (a plan says what to run) and nothing of the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from llmgw.agent.children import Child, spawn
from llmgw.agent.ending import end_processes
from llmgw.agent.figures import watch_figures
from llmgw.agent.gpu_memory import GpuMemory
from llmgw.agent.logs import LogError, log_path, read_tail
from llmgw.agent.open_ports import LOOK_S, takes_connections
from llmgw.agent.processes import (
    Exit,
    ExitWatch,
    ProcessIdentity,
    ProcessInfo,
    belonging,
    is_alive,
    listens_for_another,
)
from llmgw.agent.readiness import wait_for_answers
from llmgw.agent.record_keeper import RecordKeeper
from llmgw.agent.rotation import LogKeeper, shrink_all
from llmgw.agent.run_folder import NotReady, check_way, prepare, run_folder
from llmgw.agent.scopes import Scopes
from llmgw.agent.spec_store import SavedProcess, ShardRecord, SpecStore
from llmgw.agent.weights.keeper import Weights
from llmgw.config.addresses import join_host_port
from llmgw.engines.base import LaunchPlan, ProcessPlan
from llmgw.engines.figures import FigureNames
from llmgw.hardware.engine_user import Account
from llmgw.messages.agent import HeldShard, Progress, ShardPhase

log = structlog.get_logger("agent")

# A worker serves nothing; one that dies of a wrong flag does so at once, and is not called ready before.
WORKER_SETTLES_S = 1.0
LOG_CHECK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ShardHost:
    """What every shard of a node shares.

    `figures` names the metrics that tell of an engine's load, by the engine's name. `carried` reads the data
    counters of the node's adapters (blocking), `now_boot_s` is CLOCK_BOOTTIME, `changed` is told of transitions.
    """

    node_id: str
    address: str
    work_dir: str
    store: SpecStore
    stop_timeout_s: float
    health_interval_s: float
    log_lines: int
    gpu_memory: GpuMemory
    account: Account | None
    scopes: Scopes | None
    figures: Callable[[str], FigureNames]
    carried: Callable[[], dict[str, int]]
    weights: Weights
    now_boot_s: Callable[[], float]
    changed: Callable[[Shard], None]


@dataclass(frozen=True)
class Failure:
    """Why a shard failed: a sentence, and the engine's exit code where it has one."""

    reason: str
    exit_code: int | None = None


class Shard:
    """A live shard. `plan` is given for one that is to be started; without it, its processes are adopted."""

    def __init__(self, record: ShardRecord, host: ShardHost, plan: LaunchPlan | None) -> None:
        self._host = host
        self._keeper = RecordKeeper(
            record, host.store, now_boot_s=host.now_boot_s, told=lambda: host.changed(self)
        )
        self._plan = plan
        self._children: dict[str, Child] = {}
        self._watches: list[ExitWatch] = []
        self._seen_to_end: set[int] = set()
        self._first_exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._spawning: tuple[str, asyncio.Future[Child]] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def record(self) -> ShardRecord:
        """All that is known of the shard, as it stands in memory."""
        return self._keeper.record

    @property
    def folder(self) -> Path:
        return self._host.store.folder(self.record.spec.shard_id)

    def begin(self) -> None:
        """Start (or go on with) the shard's life in a task of its own."""
        self._task = asyncio.create_task(self._run(), name=f"shard {self.record.spec.shard_id}")

    async def stop(self, reason: str) -> None:
        """Record that the shard is to end, and have its task end it. Returns before it has ended."""
        if not self.record.live or self._stop.is_set():
            return
        self._stop.set()
        await self._transition("stopping", reason=reason)

    async def leave(self) -> None:
        """End the task and leave the processes running: the agent ends, the engine does not."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._keeper.saved()

    async def ended(self) -> None:
        """Wait until the shard has ended."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def held(self) -> HeldShard:
        """The shard as the server is told of it."""
        return self._keeper.held()

    # The life, in call order.

    async def _run(self) -> None:
        life = asyncio.create_task(self._live())
        stop = asyncio.create_task(self._stop.wait())
        keep = asyncio.create_task(self._keep_logs_small())
        try:
            if self.record.phase == "stopping" and self.record.failure is None:
                self._stop.set()  # adopted in the middle of a stop
            first: set[asyncio.Task[Any]] = {life, stop}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            stopped = self._stop.is_set()
            life.cancel()
            outcome = (await asyncio.gather(life, return_exceptions=True))[0]
            await self._settle_spawn()
            if isinstance(outcome, Failure) and not stopped:
                await self._fail(outcome)
            elif stopped:
                await self._end_stopped()
            else:
                log.error("a shard's own task failed", shard=self.record.spec.shard_id, error=repr(outcome))
                await self._fail(Failure(f"the agent could not keep this shard: {outcome!r}"))
        finally:
            await self._settle_spawn()
            for task in (life, stop, keep):
                task.cancel()
            await asyncio.gather(life, stop, keep, return_exceptions=True)
            for watch in self._watches:
                watch.close()

    async def _live(self) -> Failure:
        """Run until something goes wrong; a stop cancels it."""
        if self.record.failure is not None:
            return Failure(self.record.failure, self.record.exit_code)
        if self._plan is not None:
            failure = await self._launch(self._plan)
            if failure is not None:
                return failure
        else:
            for process in self.record.processes:
                self._watch(process.name, ProcessIdentity(process.pid, process.start_ticks))
        ready = asyncio.create_task(self._become_ready())
        figures: asyncio.Task[None] | None = None
        try:
            first: set[asyncio.Future[Any]] = {ready, self._first_exit}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not self._first_exit.done():
                failure = ready.result()
                if failure is not None:
                    return failure
                figures = asyncio.create_task(self._watch_figures())
            exit_ = await asyncio.shield(self._first_exit)
        finally:
            tasks = [ready] if figures is None else [ready, figures]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return Failure(exit_.sentence(), exit_.code if exit_.name == "engine" else None)

    async def _launch(self, plan: LaunchPlan) -> Failure | None:
        if self.record.phase == "fetching":
            failure = await self._fetch()
            if failure is not None:
                return failure
        if self.record.spec.rendezvous is not None:
            failure = await self._wait_for_leader()
            if failure is not None:
                return failure
        used_before: dict[str, int] = {}
        if self.record.spec.gpus:
            waited = await self._host.gpu_memory.wait_free(self.record, on_held=self._say_waiting)
            if waited.problem is not None:
                return Failure(waited.problem)
            used_before = waited.used_mib
        try:
            await asyncio.to_thread(prepare, self.folder, plan, self._host.account)
        except NotReady as exc:
            return Failure(str(exc))
        several = self.record.spec.nodes > 1
        await self._keeper.change(
            carried_before=await asyncio.to_thread(self._host.carried) if several else {},
            started_boot_s=self._host.now_boot_s(),
            gpu_used_before_mib=used_before,
            load=plan.load,
            readiness=plan.readiness,
        )
        for warning in plan.warnings:
            log.warning("a shard starts otherwise than it seems", shard=self.record.spec.shard_id, what=warning)
        for process in [*plan.sidecars, plan.engine]:
            failure = await self._wait_before(process) or await self._spawn(process)
            if failure is not None:
                return failure
            if self._first_exit.done():
                return None
        if self.record.phase == "waiting":
            await self._transition("starting")
        return None

    async def _fetch(self) -> Failure | None:
        """Until the weights are on this node; everything else of the start comes after."""
        spec, account = self.record.spec, self._host.account
        target = self._host.weights.model_path(spec)
        if account is not None and target is not None:
            try:
                await asyncio.to_thread(check_way, self.folder, Path(target), account)
            except NotReady as exc:
                return Failure(str(exc))
        problem = await self._host.weights.fetch(
            spec,
            since_boot_s=self.record.received_boot_s,
            on_progress=self._keeper.show,
            on_news=self._say_fetching,
        )
        if problem is not None:
            return Failure(problem)
        await self._transition("waiting" if spec.rendezvous is not None else "starting")
        return None

    async def _wait_for_leader(self) -> Failure | None:
        """Until the leader's rendezvous port takes connections: engines differ in how long they would dial."""
        spec = self.record.spec
        assert spec.rendezvous is not None
        host, port = spec.rendezvous.host, spec.rendezvous.port
        deadline = self.record.received_boot_s + spec.rendezvous_timeout_s
        if await self._takes_connections(host, port, deadline):
            return None
        return Failure(
            f"the leader did not open its rendezvous port {join_host_port(host, port)} within "
            f"{spec.rendezvous_timeout_s:g} s; see rank 0's log, and whether a firewall stands between"
        )

    async def _wait_before(self, process: ProcessPlan) -> Failure | None:
        """Until the port that this process needs is open; one before it opens it, or has ended."""
        port = process.waits_for
        if port is None:
            return None
        within_s = self.record.spec.rendezvous_timeout_s
        open_ = asyncio.create_task(
            self._takes_connections(port.host, port.port, self._host.now_boot_s() + within_s)
        )
        try:
            first: set[asyncio.Future[Any]] = {open_, self._first_exit}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._first_exit.done():
                exit_ = self._first_exit.result()
                return Failure(exit_.sentence())
            if open_.result():
                return None
        finally:
            open_.cancel()
            await asyncio.gather(open_, return_exceptions=True)
        where = join_host_port(port.host, port.port)
        return Failure(
            f"nothing opened {where} for {process.name} within {within_s:g} s; see the shard's other logs"
        )

    def _takes_connections(self, host: str, port: int, deadline_boot_s: float) -> Coroutine[Any, Any, bool]:
        return takes_connections(
            host,
            port,
            deadline_boot_s=deadline_boot_s,
            now_boot_s=self._host.now_boot_s,
            look_s=min(LOOK_S, self._host.health_interval_s),
        )

    async def _spawn(self, plan: ProcessPlan) -> Failure | None:
        try:
            path = log_path(self.folder, plan.name)
        except LogError as exc:
            return Failure(f"{plan.name!r} cannot be started: {exc}")
        start = partial(
            spawn,
            plan,
            shard_id=self.record.spec.shard_id,
            work_dir=self._host.work_dir,
            node_id=self._host.node_id,
            gpus=self.record.spec.gpus,
            folder=run_folder(self.folder),
            log=path,
            account=self._host.account,
            scopes=self._host.scopes,
        )
        # Kept aside: a stop or the agent's end in this very moment must still see the child.
        spawning = asyncio.ensure_future(asyncio.to_thread(start))
        self._spawning = (plan.name, spawning)
        try:
            child = await asyncio.shield(spawning)
        except OSError as exc:
            self._spawning = None
            return Failure(
                f"{plan.name} could not be started: {plan.argv[0]}: {exc.strerror or exc}; "
                "check the program that agent.yaml names for this engine"
            )
        self._spawning = None
        await self._adopt_child(plan.name, child)
        return None

    async def _adopt_child(self, name: str, child: Child) -> None:
        self._children[name] = child
        saved = SavedProcess(name=name, pid=child.identity.pid, start_ticks=child.identity.start_ticks)
        saving = self._keeper.change(processes=[*self.record.processes, saved])
        self._watch(name, child.identity)
        await saving

    async def _settle_spawn(self) -> None:
        """Take in a process whose start was under way when the life ended."""
        spawning, self._spawning = self._spawning, None
        if spawning is not None:
            name, future = spawning
            child = (await asyncio.gather(future, return_exceptions=True))[0]
            if isinstance(child, Child):
                await self._adopt_child(name, child)

    def _watch(self, name: str, identity: ProcessIdentity) -> None:
        was_there = is_alive(identity)

        def gone() -> None:
            if was_there:
                self._seen_to_end.add(identity.pid)
            if not self._first_exit.done():
                child = self._children.get(name)
                self._first_exit.set_result(Exit(name, child.exit_code() if child else None))

        self._watches.append(ExitWatch(identity, gone))

    async def _become_ready(self) -> Failure | None:
        """Return None once ready (again), a failure when a deadline is over."""
        record = self.record
        if record.readiness is None or record.http_port is None:
            if record.phase != "ready":
                await asyncio.sleep(WORKER_SETTLES_S)
        else:
            too_late = await wait_for_answers(
                record,
                self._host.address,
                interval_s=self._host.health_interval_s,
                now_boot_s=self._host.now_boot_s,
                on_note=self._note,
                is_anothers=partial(
                    listens_for_another,
                    self._host.address,
                    record.http_port,
                    record.spec.shard_id,
                    self._host.work_dir,
                ),
            )
            if too_late is not None:
                return Failure(too_late)
        if self.record.phase != "ready":
            await self._transition("ready")
        return None

    async def _watch_figures(self) -> None:
        record = self.record
        if record.http_port is not None and record.readiness is not None:
            names = self._host.figures(record.spec.engine)
            show = self._keeper.show_figures
            await watch_figures(self._host.address, record.http_port, record.api_key, names, show)

    def _say_waiting(self, reason: str) -> None:
        if not self._stop.is_set():
            self._transition("waiting", reason=reason)

    def _note(self, note: str) -> None:
        if self.record.phase != "ready":
            self._keeper.show(Progress(what="load", note=note))

    def _say_fetching(self, reason: str) -> None:
        if not self._stop.is_set():
            self._transition("fetching", reason=reason)

    # The end.

    async def _fail(self, failure: Failure) -> None:
        """Kill whatever is left, then say why it failed, with the last output."""
        await self._keeper.change(failure=failure.reason, exit_code=failure.exit_code)
        log.warning("shard fails", shard=self.record.spec.shard_id, reason=failure.reason)
        slow = asyncio.get_running_loop().call_later(1.0, self._say_stopping, failure.reason)
        await end_processes(self._find, grace_s=0.0, on_slow=self._say_stuck)
        held = await self._wait_for_memory(failure.reason)
        slow.cancel()
        await self._finish("failed", failure.reason, held, exit_code=failure.exit_code)

    async def _end_stopped(self) -> None:
        spec, reason = self.record.spec, self.record.reason
        grace_s = spec.stop_timeout_s if spec.stop_timeout_s is not None else self._host.stop_timeout_s
        saved = next((one for one in self.record.processes if one.name == "engine"), None)
        main = ProcessIdentity(saved.pid, saved.start_ticks) if saved else None
        await end_processes(self._find, grace_s=grace_s, main=main, on_slow=self._say_stuck)
        child = self._children.get("engine")
        code = child.exit_code() if child else None
        held = await self._wait_for_memory(reason)
        await self._finish("stopped", reason, held, exit_code=code)

    async def _wait_for_memory(self, reason: str | None) -> dict[str, str]:
        """Until the memory of the shard's GPUs is free, or was waited for long enough: UUID → what holds it."""

        def say(what: str) -> None:
            self._transition("stopping", reason=f"{reason}; {what}" if reason else what)

        return await self._host.gpu_memory.wait_released(self.record, on_held=say)

    async def _finish(self, phase: ShardPhase, reason: str | None, held: dict[str, str], **changes: Any) -> None:
        for child in self._children.values():
            await asyncio.to_thread(child.reap)
        # Also of one that was told to stop: in a gang, the rank that hangs is seldom the one that fails.
        tail = await asyncio.to_thread(self._tail, reason or "")
        await asyncio.to_thread(shrink_all, self.folder)
        if held:
            left = "its processes have ended and memory is still in use: " + "; ".join(held.values())
            log.error("GPU memory is not released", shard=self.record.spec.shard_id, held=list(held.values()))
            reason = f"{reason}; {left}" if reason else left
        await self._transition(
            phase,
            reason=reason,
            processes=[],
            failure=None,
            ended_at_s=time.time(),
            unreleased=list(held),
            output_tail=tail,
            **changes,
        )

    def _find(self) -> list[ProcessInfo]:
        recorded = [ProcessIdentity(one.pid, one.start_ticks) for one in self.record.processes]
        return belonging(
            self.record.spec.shard_id,
            self._host.work_dir,
            recorded,
            watched=frozenset(self._seen_to_end),
            scopes=self._host.scopes,
        )

    def _tail(self, reason: str) -> list[str]:
        read = partial(read_tail, self.folder, secret=self.record.api_key)
        tail = read("engine", self._host.log_lines)
        for path in sorted(self.folder.glob("*.log")):
            if path.stem != "engine" and reason.startswith(path.stem + " "):
                tail += [f"{path.stem}: {line}" for line in read(path.stem, 50)]
        return tail[-self._host.log_lines :]

    def _say_stopping(self, reason: str) -> None:
        if self.record.phase != "stopping":
            self._transition("stopping", reason=reason)

    def _say_stuck(self, left: list[ProcessInfo]) -> None:
        pids = ", ".join(f"{info.pid} (state {info.state})" for info in left[:8])
        reason = f"SIGKILL does not end process {pids}; it hangs in the kernel, often in a driver: see dmesg"
        self._transition("stopping", reason=reason)

    async def _keep_logs_small(self) -> None:
        keeper = LogKeeper(self.folder)
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            await asyncio.to_thread(keeper.tend)

    def _transition(self, phase: ShardPhase, **changes: Any) -> asyncio.Future[None]:
        """Enter a phase, saved and told to the server. A stop is never taken back."""
        if self._stop.is_set() and phase in ("starting", "ready"):
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return self._keeper.transition(phase, **changes)
