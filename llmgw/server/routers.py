"""Keeps the routers: finds those that outlived the previous server, starts, replaces and ends them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import structlog
from msgspec.structs import replace

import llmgw
from llmgw.config.errors import SentenceError
from llmgw.config.listeners import bound_address
from llmgw.config.server import ServerConfig
from llmgw.messages.findings import Finding
from llmgw.messages.router_files import ROUTER_LOG
from llmgw.messages.routes import EndpointFigures, Hello, RouteTable, Telemetry
from llmgw.server.hub import Hub
from llmgw.server.router_findings import router_findings
from llmgw.server.router_listeners import RouterListeners
from llmgw.server.router_plan import Fit, plan
from llmgw.server.router_process import router_settings, start_router
from llmgw.server.router_shares import RouterShares
from llmgw.server.router_slots import free_name, living
from llmgw.server.router_worker import RouterView, Worker
from llmgw.server.usage_book import UsageBook

log = structlog.get_logger("routers")

GREETING_WAIT_S = 2.0
"""A router that lives greets within milliseconds. One that does not (it is stopped, or its machine swaps) keeps
agents and operators waiting no longer than this. Its table is imported whenever it greets, and no table is
published before one has: nothing is withdrawn that was not asked about."""
FIRST_GREETING_WAIT_S = 15.0
"""One that was just started: its program must be loaded, and one that ends at once is this server's end too."""
WATCH_S = 0.5
YOUNG_S = 2.0
RESTART_BACKOFF_S = 2.0
"""One that ended before it was two seconds old is not started again before this."""


class RouterError(SentenceError):
    """The gateway cannot serve."""


class Routers:
    """All router processes of this server's state folder; what they say goes to the hub."""

    def __init__(self, config: ServerConfig, usage: UsageBook | None = None) -> None:
        """`usage` gets what they say that requests took."""
        self._usage = usage
        self._config = config
        self._state = Path(config.state)
        self._wanted = wanted_workers(config)
        self._hub: Hub | None = None
        self._settings = router_settings(config)
        self._listeners = RouterListeners(config.listen)
        self._workers: dict[str, Worker] = {}
        self._ended: dict[str, Worker] = {}
        """Name → the last that has ended: the next of that name counts on. As few as names are ever needed."""
        self._unasked: set[str] = set()
        """Those whose table this server has to import, and that have not greeted yet."""
        self._released = False
        self._table: RouteTable | None = None
        self._look = asyncio.Event()
        self._shares = RouterShares(self._wanted)
        self._not_before = 0.0
        self._cannot_listen = False
        self._stopping = False
        self._watching: asyncio.Task[None] | None = None

    def claim(self) -> None:
        """Open the model API's listener, unless living routers have it. Raises ListenError."""
        self._listeners.inherit()
        if self._wanted and not living(self._state):
            self._listeners.open()

    async def start(self, hub: Hub) -> None:
        """Connect to the routers that live, or start some, and wait a moment for their greetings.

        With each greeting, whenever it comes, that router's table is imported, and only then are routes released.
        Raises RouterError when one that was started ends at once.
        """
        self._hub = hub
        wait_s = GREETING_WAIT_S
        for name in living(self._state):
            self._follow(name)
        if not self._workers and self._wanted:
            wait_s = FIRST_GREETING_WAIT_S
            for _ in range(self._wanted):
                self._launch()
        self._unasked = set(self._workers)
        try:
            async with asyncio.timeout(wait_s):
                await self._until_greeted()
        except TimeoutError:
            for name in self._unasked:
                worker = self._workers[name]
                log.error(
                    "a router does not greet", router=name, pid=worker.pid, after_s=wait_s, log=self._log_path
                )
                # Planned stops wait for it as for the others, up to their limit.
                worker.router_id = f"{name}, which has not greeted"
                hub.router_connected(worker.router_id)
            if not self._release(silent=True) and self._unasked:
                log.error("no routes are published until a router greets")
        self._watching = asyncio.create_task(self._watch(), name="router-watch")

    def publish(self, table: RouteTable) -> None:
        """Have the routers route by this table."""
        self._table = table
        self._shares.publish(table)
        for worker in self._workers.values():
            worker.link.send_table(table)

    def send_figures(self, figures: EndpointFigures) -> None:
        """Tell the routers what engines say of their load."""
        for worker in self._workers.values():
            worker.link.send_figures(figures)

    def names(self) -> list[str]:
        """For people: each router's process, where it listens, and its name."""
        return [
            f"pid {view.pid} on {view.listen} ({view.name}{', finishing' if view.state == 'finishing' else ''})"
            for view in self.views()
            if view.listen
        ]

    def views(self) -> list[RouterView]:
        """Every worker that lives, by name."""
        return [worker.view() for worker in self._sorted()]

    def findings(self) -> list[Finding]:
        """What is wrong with the routers."""
        return router_findings(self.views(), self._config, self._wanted)

    async def stop(self, drain_s: float) -> None:
        """A clean stop ends the routers too, after their streams or `drain_s`; those that are units stay."""
        self._stopping = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._wanted:
            for worker in self._workers.values():
                worker.finish(drain_s)
                if worker.process is not None and not worker.link.connected:
                    worker.process.terminate()  # it is starting: there is nothing that it would have to finish
            self._listeners.close()
            loop = asyncio.get_running_loop()
            deadline = loop.time() + drain_s + 5.0
            left = list(self._workers.values())
            while left and loop.time() < deadline:
                await asyncio.sleep(0.05)
                left = [worker for worker in left if not worker.ended()]
        for worker in self._workers.values():
            await worker.forget()
            if worker.process is not None and worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
        self._listeners.close()

    # Inside: starting.

    @property
    def _log_path(self) -> str:
        return str(self._state / ROUTER_LOG)

    def _sorted(self) -> list[Worker]:
        return sorted(self._workers.values(), key=lambda worker: (len(worker.name), worker.name))

    def _follow(self, name: str) -> Worker:
        worker = Worker(
            self._state, name, on_hello=self._hello, on_telemetry=self._telemetry, on_lost=self._look.set
        )
        if (before := self._ended.pop(name, None)) is not None:
            worker.count_on(before)
        self._workers[name] = worker
        if self._table is not None:
            worker.link.send_table(self._table)
        worker.follow()
        return worker

    def _launch(self) -> None:
        """Start one on the listeners. Raises OSError."""
        name = free_name(self._state, set(self._workers))
        process = start_router(
            self._state,
            self._listeners.sockets,
            self._config,
            worker=int(name.removeprefix("router-")),
            share_of=self._wanted,
            needs_keys=self._hub is not None and self._hub.keys.required,
        )
        worker = self._follow(name)
        worker.process = process
        worker.started_at = asyncio.get_running_loop().time()
        log.info("router started", router=name, pid=process.pid, listen=bound_address(self._listeners.sockets[0]))

    async def _until_greeted(self) -> None:
        while self._unasked:
            self._look.clear()
            for name in list(self._unasked):
                worker = self._workers[name]
                if worker.process is not None and worker.process.poll() is not None and not worker.greeted:
                    raise RouterError(f"the router ended at once: {self._last_words()}")
                if worker.ended():
                    self._unasked.discard(name)
            if self._unasked:
                try:
                    async with asyncio.timeout(WATCH_S):
                        await self._look.wait()
                except TimeoutError:
                    pass

    def _last_words(self) -> str:
        path = self._state / ROUTER_LOG
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 4096))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError as error:
            return f"its log {path} cannot be read ({error.strerror})"
        return next((line for line in reversed(lines) if line.strip()), f"its log {path} is empty")

    # Inside: keeping.

    async def _watch(self) -> None:
        """Look when something happened, and regularly: who has ended, who is new, who is to come and to go."""
        while True:
            self._look.clear()
            try:
                await self._bury()
                for name in living(self._state):
                    if name not in self._workers:
                        self._follow(name)
                self._keep_number()
                self._send_shares()
            except Exception as error:
                log.error("the routers cannot be looked after", error=repr(error))
            try:
                async with asyncio.timeout(WATCH_S):
                    await self._look.wait()
            except TimeoutError:
                pass

    async def _bury(self) -> None:
        for worker in list(self._workers.values()):
            if not worker.ended():
                continue
            del self._workers[worker.name]
            self._ended[worker.name] = worker
            self._shares.left(worker.name)
            await worker.forget()
            if worker.process is not None:
                await asyncio.to_thread(worker.process.wait)
                now = asyncio.get_running_loop().time()
                if now - worker.started_at < YOUNG_S and not worker.leaving:
                    self._not_before = now + RESTART_BACKOFF_S
            if worker.router_id is not None and self._hub is not None:
                self._hub.router_gone(worker.router_id)
            if not worker.leaving:
                log.warning("a router has ended", router=worker.name, log=self._log_path)
            if worker.name in self._unasked:
                self._unasked.discard(worker.name)
                self._release()

    def _keep_number(self) -> None:
        if not self._wanted or self._stopping:
            return
        now = asyncio.get_running_loop().time()
        steps = plan([(worker.name, self._fit(worker)) for worker in self._sorted()], self._wanted)
        for name in steps.stop:
            worker = self._workers[name]
            log.info("a router is told to finish", router=name, pid=worker.pid)
            worker.finish(self._config.router.drain_grace)
        if steps.start and now >= self._not_before and self._may_listen():
            for _ in range(steps.start):
                self._launch()

    def _fit(self, worker: Worker) -> Fit:
        hello = worker.link.hello
        if worker.leaving:
            return Fit.LEAVING
        if hello is None:
            return Fit.UNKNOWN
        same = (
            hello.software_version == llmgw.__version__
            and self._listeners.fits(hello.listen)
            and hello.settings in ("", self._settings)  # none: it was not a server that started it
        )
        return Fit.CURRENT if same else Fit.OUTDATED

    def _may_listen(self) -> bool:
        """True when there are sockets to start routers on; opens them where no router can have them."""
        if self._listeners.sockets:
            return True
        for worker in self._workers.values():
            hello = worker.link.hello
            if not worker.leaving and (hello is None or self._listeners.fits(hello.listen)):
                return False  # it has them; it gives them with its greeting, or they are free when it has ended
        try:
            self._listeners.open()
        except SentenceError as error:
            if not self._cannot_listen:
                log.error("no router can be started", error=str(error))
            self._cannot_listen = True
            return False
        self._cannot_listen = False
        return True

    # Inside: what they hold together.

    def _send_shares(self, *again: str) -> None:
        """Tell each router its part of what all hold together, where it changed; those named in any case."""
        hub = self._hub
        if hub is None:
            return
        sharing = [worker for worker in self._workers.values() if worker.shares(llmgw.__version__)]
        parts = hub.keys.shares.divide(worker.router_id or "" for worker in sharing)
        also = [*again]
        for worker in sharing:
            mine = parts[worker.router_id or ""]
            if mine != worker.key_parts:
                worker.key_parts = mine
                also.append(worker.name)
        for name, share in self._shares.due(also).items():
            worker = self._workers[name]
            worker.link.send_share(replace(share, keys=worker.key_parts))

    # Inside: what routers say.

    def _hello(self, worker: Worker, hello: Hello) -> None:
        hub = self._hub
        if hub is None or self._stopping:
            return
        if self._wanted:
            self._listeners.adopt(worker.link.take_listeners())
        if worker.router_id is not None and worker.router_id != hello.router_id:
            # A unit that was restarted has another process before anybody saw that the first had ended.
            hub.router_gone(worker.router_id)
            self._shares.left(worker.name)
            worker.begin_anew()
        worker.router_id = hello.router_id
        hub.router_connected(hello.router_id)
        if hello.software_version == llmgw.__version__:
            self._shares.joined(worker.name, hello)
            worker.key_parts = hub.keys.shares.connected(hello.router_id)
            self._send_shares(worker.name)
        if hello.draining:
            worker.leaving = True
        elif worker.leaving:
            worker.finish(self._config.router.drain_grace)
        if not self._released or worker.name in self._unasked:
            if hello.table is not None and hello.table.version.epoch != hub.epoch:
                hub.import_table(hello.table)
                log.info("imported a router's table", router=worker.name, epoch=hello.table.version.epoch)
            self._unasked.discard(worker.name)
        worker.greeted = True
        self._release()
        self._look.set()

    def _release(self, *, silent: bool = False) -> bool:
        """Publish routes from now on, once every router that has a table was asked for it.

        A router that hangs does not keep route changes from the others for ever (`silent`); it is asked whenever
        it answers. False while none has greeted.
        """
        silent = silent or self._watching is not None
        if (self._unasked and not silent) or not any(worker.greeted for worker in self._workers.values()):
            return False
        self._released = True
        if self._hub is not None:
            self._hub.release_routes()
        return True

    def _telemetry(self, worker: Worker, message: Telemetry) -> None:
        if message.draining and not worker.leaving:
            worker.leaving = True
            self._look.set()
        self._shares.heard(worker.name, message)
        if self._hub is not None and worker.router_id is not None:
            self._hub.telemetry(worker.router_id, message)
        if self._usage is not None:
            if message.usage is not None:
                self._usage.take(message.usage, worker.link.send_stored)
            if message.draining:
                self._usage.write()  # it waits for that, to end


def wanted_workers(config: ServerConfig) -> int:
    """How many routers this server keeps: as configured, else one for two of the cores that it may use."""
    if config.router.workers is not None:
        return config.router.workers
    return max(1, len(os.sched_getaffinity(0)) // 2)
