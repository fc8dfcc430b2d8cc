"""A real router process, engines that do what a test tells them to, and a client of bare sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from llmgw.messages.routes import Hello, ModelRoute, Outcome, RouteEndpoint, RouteTable, TableVersion, Telemetry
from llmgw.server.router_link import RouterLink
from tests.patience import PATIENCE

PROGRAM = (sys.executable, "-m", "llmgw", "router")
DEADLINE_S = 10.0 * PATIENCE
EVENT_STREAM = b"content-type: text/event-stream\r\n"


async def until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition; fail with `what` when it does not come."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        await asyncio.sleep(0.005)


class RouterProcess:
    """`llmgw router` as the operating system runs it."""

    def __init__(
        self,
        state: Path,
        *arguments: str,
        listen: str = "127.0.0.1:0",
        program: tuple[str, ...] = PROGRAM,
    ) -> None:
        self.state = state
        state.mkdir(parents=True, exist_ok=True)
        self.log_path = state / "output.log"
        with self.log_path.open("ab") as output:
            self.process = subprocess.Popen(
                [*program, f"--state={state}", f"--listen={listen}", *arguments],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.host, self.port = "", 0

    async def serving(self) -> RouterProcess:
        """Wait until it says where it serves."""

        def address() -> bool:
            text = self.log_path.read_text()
            assert self.process.poll() is None, text
            lines = [line for line in text.splitlines() if f"(pid {self.process.pid})" in line]
            if lines:
                self.host, _, port = lines[-1].partition("serving on ")[2].split(" ")[0].rpartition(":")
                self.host = self.host.strip("[]")
                self.port = int(port)
            return bool(lines)

        await until(address, "the router serves")
        return self

    def rss_mib(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE_S)


@dataclass
class Seen:
    """A request as an engine saw it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    closed: asyncio.Event = field(default_factory=asyncio.Event)


Script = Callable[[Seen, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Engine:
    """A small HTTP server that reads requests and lets a script write whatever it likes."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Seen] = []
        self.connections = 0
        self.aborted = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, port: int = 0) -> Engine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=16 * 1024 * 1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while not writer.is_closing():
                seen = await read_request(reader)
                self.requests.append(seen)
                await self.script(seen, reader, writer)
                if not writer.is_closing():
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.aborted += 1
        finally:
            self._writers.discard(writer)
            writer.close()

    def kill(self) -> None:
        """Die as after kill -9: no more connections, those that stand are reset."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()


async def read_request(reader: asyncio.StreamReader) -> Seen:
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    method, target, _ = first.split(" ")
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, target, headers, body)


def plain(body: bytes = b'{"ok":true}', status: int = 200, headers: bytes = b"") -> Script:
    """Answers at once, with a length."""

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
            % (status, headers, len(body), body)
        )

    return script


def raw(*parts: bytes, close: bool = False, abort: bool = False) -> Script:
    """Writes these parts, one a turn, and perhaps ends the connection."""

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.002)
        if abort:
            writer.transport.abort()
        elif close:
            writer.close()

    return script


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def hang(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says nothing, and notes when the other side closes."""
    await reader.read()
    seen.closed.set()
    writer.close()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    raw_body: bytes
    closed: bool


class Client:
    """One connection to a router, bytes in and bytes out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(DEADLINE_S):
            data = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = data[:-4].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split(" ")[1]), headers

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """The next whole answer. Raises IncompleteReadError when it is cut."""
        status, headers = await self.head()
        body = raw_body = b""
        closed = False
        async with asyncio.timeout(DEADLINE_S):
            if bodiless or status in (100, 204, 304):
                pass
            elif headers.get("transfer-encoding") == "chunked":
                while True:
                    line = await self.reader.readuntil(b"\r\n")
                    data = await self.reader.readexactly(int(line.split(b";")[0], 16) + 2)
                    raw_body += line + data
                    body += data[:-2]
                    if len(data) == 2:
                        break
            elif "content-length" in headers:
                body = raw_body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = raw_body = await self.reader.read()
                closed = True
        return Answer(status, headers, body, raw_body, closed)

    async def rest(self) -> bytes:
        """Everything until the router closes. Raises ConnectionError when it resets."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.read()

    async def ended(self) -> None:
        """Wait until the router has ended the connection, in whatever order."""
        try:
            await self.rest()
        except ConnectionError:
            pass

    def close(self) -> None:
        self.writer.close()


def post(
    body: bytes = b'{"model":"m"}',
    path: str = "/v1/chat/completions",
    headers: bytes = b"",
    version: str = "1.1",
) -> bytes:
    """A request as bytes."""
    return b"POST %b HTTP/%b\r\nhost: gw\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        path.encode(),
        version.encode(),
        headers,
        len(body),
        body,
    )


class Fleet:
    """The control process's end, and the engines of one test."""

    def __init__(self, router: RouterProcess) -> None:
        self.router = router
        self.hello: list[Hello] = []
        self.telemetry: list[Telemetry] = []
        self.link = RouterLink(
            router.state, on_hello=self.hello.append, on_telemetry=self.telemetry.append, reconnect_s=0.02
        )
        self.linked: asyncio.Task[None] | None = None
        self.epoch = uuid.uuid4().hex
        self.number = 0
        self.engines: list[Engine] = []
        self._clients: list[Client] = []

    async def engine(self, script: Script) -> Engine:
        engine = await Engine(script).start()
        self.engines.append(engine)
        return engine

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection(self.router.host, self.router.port, limit=4 * 1024 * 1024))
        self._clients.append(client)
        return client

    async def ask(self, request: bytes) -> Answer:
        """One request over a connection of its own."""
        client = await self.client()
        client.send(request)
        return await client.answer()

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for frame in self.telemetry for outcome in frame.outcomes]

    async def outcome(self) -> Outcome:
        """The only outcome so far."""
        await until(lambda: self.outcomes, "an outcome")
        return self.outcomes[-1]

    @property
    def in_flight(self) -> dict[str, int]:
        return self.telemetry[-1].in_flight if self.telemetry else {}

    async def route(self, *models: ModelRoute) -> TableVersion:
        """Send a table and wait until the router routes by it."""
        self.number += 1
        version = TableVersion(self.epoch, self.number)
        self.link.send_table(RouteTable(version=version, models=list(models)))
        await until(lambda: any(frame.acked == version for frame in self.telemetry), "the table is acknowledged")
        return version

    async def serve(self, *scripts: Script, **fields: object) -> list[Engine]:
        """The model `m` on one engine for each script."""
        engines = [await self.engine(script) for script in scripts]
        await self.route(model("m", *engines, **fields))
        return engines

    async def unlink(self) -> None:
        """End the control process's end: a router has one at a time, and this one would come back."""
        assert self.linked is not None
        self.linked.cancel()
        await asyncio.gather(self.linked, return_exceptions=True)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for engine in self.engines:
            engine.kill()


def model(name: str, *engines: Engine | int, **fields: object) -> ModelRoute:
    """A route; endpoint ids are `name-0`, `name-1`, …"""
    endpoints = [
        RouteEndpoint(
            id=f"{name}-{index}", host="127.0.0.1", port=engine.port if isinstance(engine, Engine) else engine
        )
        for index, engine in enumerate(engines)
    ]
    return ModelRoute(name=name, endpoints=endpoints, **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def fleet_of(router: RouterProcess) -> AsyncIterator[Fleet]:
    """A fleet whose link to the router stands, ended with the block."""
    await router.serving()
    fleet = Fleet(router)
    task = fleet.linked = asyncio.create_task(fleet.link.run())
    try:
        await until(lambda: fleet.link.connected, "the router's greeting")
        await fleet.route()
        await until(lambda: not fleet.in_flight, "earlier requests are over")
        fleet.telemetry.clear()
        yield fleet
    finally:
        fleet.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
