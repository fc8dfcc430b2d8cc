"""Keeps the routers: finds the one that outlived the previous server, or starts one, and talks to it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import subprocess
from pathlib import Path

import structlog

import llmgw
from llmgw.config.addresses import split_host_port
from llmgw.config.errors import SentenceError
from llmgw.config.listeners import bound_address, open_listener
from llmgw.config.server import ServerConfig
from llmgw.messages.findings import Finding
from llmgw.messages.frames import ROUTER_LOCK, ROUTER_LOG
from llmgw.messages.routes import Hello, RouteTable, Telemetry
from llmgw.server.hub import Hub
from llmgw.server.router_link import RouterLink
from llmgw.server.router_process import start_router

log = structlog.get_logger("routers")

GREETING_WAIT_S = 2.0
"""A router that lives greets within milliseconds. One that does not (it is stopped, or its machine swaps) keeps
agents and operators waiting no longer than this. Its table is imported whenever it greets, and no table is
published before that: nothing is withdrawn that was not asked about."""
FIRST_GREETING_WAIT_S = 15.0
"""One that was just started: its program must be loaded, and one that ends at once is this server's end too."""
WATCH_S = 0.5
RESTART_BACKOFF_S = 2.0


class RouterError(SentenceError):
    """The gateway cannot serve."""


class Routers:
    """One router process in this form; what it says goes to the hub."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._state = Path(config.state)
        self._hub: Hub | None = None
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._router_id: str | None = None
        self._greeted = asyncio.Event()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self.link = RouterLink(
            self._state, on_hello=self._hello, on_telemetry=self._telemetry, on_lost=self._lost
        )

    def claim(self) -> None:
        """Open the model API's listener, unless a living router has it. Raises ListenError."""
        if not self._alive():
            self._open_listener()

    async def start(self, hub: Hub) -> None:
        """Connect to the router that lives, or start one, and wait a moment for its greeting.

        With the greeting, whenever it comes, its table is imported, and only then are routes released.
        Raises RouterError when the one that was started ends at once.
        """
        self._hub = hub
        wait_s = GREETING_WAIT_S
        if self._listener is not None:
            self._launch()
            wait_s = FIRST_GREETING_WAIT_S
        self._tasks.append(asyncio.create_task(self.link.run(), name="router-link"))
        try:
            await asyncio.wait_for(self._until_greeted(), wait_s)
        except TimeoutError:
            log.error(
                "the router does not greet; no routes are published until it does",
                after_s=wait_s,
                log=str(self._state / ROUTER_LOG),
            )
        self._tasks.append(asyncio.create_task(self._watch(), name="router-watch"))

    def publish(self, table: RouteTable) -> None:
        """Have the router route by this table."""
        self.link.send_table(table)

    def names(self) -> list[str]:
        """For people: the router's process and where it listens."""
        hello = self.link.hello
        return [f"pid {hello.pid} on {hello.listen}"] if hello is not None else []

    def findings(self) -> list[Finding]:
        """What is wrong with the routers."""
        hello = self.link.hello
        if hello is None:
            return [self._missing()]
        found = []
        host, port = split_host_port(self._config.listen)
        if port and split_host_port(hello.listen)[1] != port:
            found.append(
                Finding(
                    check="router-elsewhere",
                    severity="warning",
                    where=f"router pid {hello.pid}",
                    what=f"the router listens on {hello.listen}, the configuration says {host}:{port}",
                    why="it outlived a server with another configuration",
                    remedy=f"end it when no stream runs (kill {hello.pid}); a new one is started at once",
                )
            )
        if hello.software_version != llmgw.__version__:
            found.append(
                Finding(
                    check="router-version",
                    severity="warning",
                    where=f"router pid {hello.pid}",
                    what=f"the router is version {hello.software_version}, this server {llmgw.__version__}",
                    remedy=f"end it when no stream runs (kill {hello.pid}); a new one is started at once",
                )
            )
        return found

    async def stop(self, drain_s: float) -> None:
        """A clean stop ends the router too, after its streams or `drain_s`."""
        self._stopping = True
        self.link.send_stop(drain_s)
        deadline = asyncio.get_running_loop().time() + drain_s + 5.0
        while self._alive() and asyncio.get_running_loop().time() < deadline:
            if self._process is not None:
                self._process.poll()
            await asyncio.sleep(0.05)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._listener is not None:
            self._listener.close()

    # Inside.

    def _missing(self) -> Finding:
        if self._alive():
            return Finding(
                check="router-silent",
                severity="error",
                where="router",
                what="the router's process lives and does not answer, so route changes do not reach it",
                why="if it serves at all, then by the table it has",
                remedy=f"if it is stopped, kill -CONT {self._living_pid()}; read {self._state / ROUTER_LOG}",
            )
        return Finding(
            check="router-missing",
            severity="error",
            where="router",
            what="no router runs, so nobody is served; another is started",
            remedy=f"if this stays, read {self._state / ROUTER_LOG}",
        )

    async def _until_greeted(self) -> None:
        greeted = asyncio.create_task(self._greeted.wait())
        try:
            while not greeted.done():
                await asyncio.wait([greeted], timeout=WATCH_S)
                if self._process is not None and self._process.poll() is not None and not greeted.done():
                    raise RouterError(f"the router ended at once: {self._last_words()}")
        finally:
            greeted.cancel()

    def _last_words(self) -> str:
        path = self._state / ROUTER_LOG
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 4096))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError as error:
            return f"its log {path} cannot be read ({error.strerror})"
        return next((line for line in reversed(lines) if line.strip()), f"its log {path} is empty")

    def _open_listener(self) -> None:
        self._listener = open_listener(self._config.listen, "listen")

    def _launch(self) -> None:
        if self._listener is None:
            self._open_listener()
        assert self._listener is not None
        self._process = start_router(self._state, self._listener, self._config.router)
        log.info("router started", pid=self._process.pid, listen=bound_address(self._listener))

    def _alive(self) -> bool:
        """True while a router holds its lock: no pid can lie about that."""
        try:
            descriptor = os.open(self._state / ROUTER_LOCK, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)

    def _living_pid(self) -> str:
        """The pid that the router wrote into its lock."""
        try:
            return (self._state / ROUTER_LOCK).read_text().strip() or "PID"
        except OSError:
            return "PID"

    async def _watch(self) -> None:
        """Start another router when ours has ended."""
        while True:
            await asyncio.sleep(WATCH_S)
            if self._process is not None:
                self._process.poll()
            if self._stopping or self.link.connected or self._alive():
                continue
            if self._hub is not None and self._router_id is not None:
                self._hub.router_gone(self._router_id)
                self._router_id = None
            log.warning("the router has ended; starting another", log=str(self._state / ROUTER_LOG))
            try:
                self._launch()
            except Exception as error:
                log.error("the router cannot be started", error=str(error))
            await asyncio.sleep(RESTART_BACKOFF_S)

    def _hello(self, hello: Hello) -> None:
        hub = self._hub
        if hub is None:
            return
        if self._router_id is not None and self._router_id != hello.router_id:
            hub.router_gone(self._router_id)
        self._router_id = hello.router_id
        hub.router_connected(hello.router_id)
        if not self._greeted.is_set():
            if hello.table is not None and hello.table.version.epoch != hub.epoch:
                hub.import_table(hello.table)
                log.info("imported the router's table", epoch=hello.table.version.epoch)
            hub.release_routes()
            self._greeted.set()

    def _telemetry(self, message: Telemetry) -> None:
        if self._hub is not None and self._router_id is not None:
            self._hub.telemetry(self._router_id, message)

    def _lost(self) -> None:
        if self._hub is not None and self._router_id is not None and not self._alive():
            self._hub.router_gone(self._router_id)
