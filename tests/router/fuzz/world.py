"""A router's client side and engine side, joined as in the process, over transports that are lists of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any, TypeVar

from llmgw.messages.routes import KeyRoute, ModelRoute, RouteEndpoint, RouteTable, TableVersion
from llmgw.router.client import ClientConnection
from llmgw.router.cors import Cors
from llmgw.router.limits import Limits
from llmgw.router.service import Service
from llmgw.router.upstream import UpstreamConnection

T = TypeVar("T")
LATE = 1e15
BODY_BYTES_MAX = 4096


class Pipe(asyncio.Transport):
    """What was written stands in `out`; the protocol is told as event loops do it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._paused = False
        self._held: list[bytes | None] = []
        self.out = b""
        self.ended = False
        """`connection_lost` was called, or is about to be."""
        self.aborted = False
        self.on_write: Callable[[], None] = lambda: None
        protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 1) if name == "peername" else default

    def write(self, data: Any) -> None:
        if not self.ended:
            self.out += bytes(data)
            self._loop.call_soon(self.on_write)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        return

    def is_closing(self) -> bool:
        return self.ended

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self.aborted = self.aborted or not self.ended
        self._end(None)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        held, self._held = self._held, []
        for data in held:
            self._loop.call_soon(self.arrive, data)

    # The other side.

    def arrive(self, data: bytes | None) -> None:
        """Bytes come in; None: the other side has closed."""
        if self.ended:
            return
        if self._paused:
            self._held.append(data)
        elif data is None:
            self._protocol.eof_received()
            self._end(None)
        elif data:
            self._protocol.data_received(data)

    def reset(self) -> None:
        """The other side has reset the connection."""
        self._end(ConnectionResetError())

    def _end(self, error: Exception | None) -> None:
        if not self.ended:
            self.ended = True
            self._loop.call_soon(self._protocol.connection_lost, error)


KEY = b"llmgw-0123456789"


class World:
    """One client connection, one model `m`, and whatever its engines say to each request."""

    def __init__(
        self, loop: FuzzLoop, limits: Limits, *, engines: int = 1, keys: bool = False, **fields: Any
    ) -> None:
        """`keys`: clients need KEY, which may have one request at a time. `fields` are more of the route's."""
        self.loop = loop
        loop.world = self
        self.service = Service(limits, cors=Cors(["https://page.example"]))
        endpoints = [RouteEndpoint(id=f"e{n}", host="192.0.2.2", port=1, concurrency=1) for n in range(engines)]
        route = ModelRoute(name="m", endpoints=endpoints, chunk_timeout_s=0.0, **fields)
        key = KeyRoute(id="k", hash=sha256(KEY).digest(), concurrency=1, tokens_per_minute=10**9)
        self.service.apply(
            RouteTable(version=TableVersion("e", 1), models=[route], keys=[key], keys_required=keys)
        )
        self.engines: list[Pipe] = []
        """Connections to engines, in order."""
        self.speaking: set[asyncio.Task[None]] = set()
        """What the engine is about to say."""
        self.dial: Callable[[Pipe], None] = lambda pipe: None
        """Called with each new one."""
        self.client: ClientConnection = self.service.accept()
        self.pipe = Pipe(loop, self.client)

    def speak(self, words: Coroutine[Any, Any, None]) -> None:
        """Have the engine say this while other things happen."""
        task = self.loop.create_task(words)
        self.speaking.add(task)
        task.add_done_callback(self.speaking.discard)

    async def settle(self) -> None:
        """Let everything happen that is due."""
        for _ in range(6):
            await asyncio.sleep(0)

    async def until_still(self) -> None:
        """Until nobody writes any more."""
        before = None
        await self.settle()
        while self.speaking:
            await asyncio.gather(*self.speaking)
            await self.settle()
        while before != (now := (len(self.pipe.out), len(self.engines), sum(len(e.out) for e in self.engines))):
            before = now
            await self.settle()

    async def pass_deadlines(self) -> None:
        """All the time in the world goes by."""
        for _ in range(40):
            if not self.service.clients:
                return
            for client in list(self.service.clients):
                if client.deadline < LATE or client.stall_deadline < LATE:
                    client.deadline_passed(LATE)
            await self.until_still()

    def check_nothing_is_left(self) -> None:
        """Every count is back to where it began."""
        service = self.service
        assert not service.clients, "the connection neither answers nor ends"
        assert (service.bodies.held, service.overflowing) == (0, 0)
        assert not service.pings.count
        assert all(not caller.running for caller in service.keys._by_id.values())
        assert not any(model.admission.waiting for model in service.table.each_model())
        for endpoint in service.table.endpoints():
            assert endpoint.outstanding == 0
            for connection in endpoint.idle:
                assert isinstance(connection, UpstreamConnection)
                assert connection.transport is not None
                assert not connection.transport.is_closing()
                assert not connection.parser.received
        assert not self.loop.problems, self.loop.problems


class FuzzLoop(asyncio.SelectorEventLoop):
    """Connects to nothing but the world's engine, and keeps what goes wrong."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.problems.append(context))

    async def create_connection(self, factory: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        """As asyncio's, to the world's engine."""
        protocol = factory()
        pipe = Pipe(self, protocol)
        self.world.engines.append(pipe)
        self.world.dial(pipe)
        return pipe, protocol

    def play(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run one case to its end."""
        self.problems.clear()
        return self.run_until_complete(scenario)
