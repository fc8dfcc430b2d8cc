"""The control process's end of a router's socket: sends tables, hands on what the router says, reconnects."""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from llmgw import __version__
from llmgw.messages.frames import FrameError, FrameReader, encode_frame
from llmgw.messages.router_files import RouterFiles, worker_name
from llmgw.messages.routes import (
    EndpointFigures,
    FromRouter,
    FromServer,
    Hello,
    RouterShare,
    RouteTable,
    StopRouter,
    Telemetry,
    UsageStored,
)
from llmgw.messages.socket_paths import short_path

log = logging.getLogger(__name__)

RECONNECT_S = 0.2
# A router that lives greets at once; anything else that listens there is none.
HELLO_TIMEOUT_S = 5.0
_READ_BYTES = 256 * 1024
_SOCKETS_MAX = 16


class RouterLink:
    """One router, found by its socket in the state folder. Callbacks run in the event loop, in order.

    `on_hello` comes first on each connection and carries the table that the router routes by; the last table
    given to `send_table` is then sent again if the router has another one, so that neither side's restart
    loses it. A control process that has just started imports the hello's table before it sends its first.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        on_hello: Callable[[Hello], None],
        on_telemetry: Callable[[Telemetry], None],
        on_lost: Callable[[], None] | None = None,
        worker: str = worker_name(0),
        reconnect_s: float = RECONNECT_S,
    ) -> None:
        self.hello: Hello | None = None
        """The router's greeting while it is connected, else None."""
        self._path = RouterFiles(state_dir, worker).socket
        self._on_hello = on_hello
        self._on_telemetry = on_telemetry
        self._on_lost = on_lost
        self._reconnect_s = reconnect_s
        self._table: RouteTable | None = None
        self._listeners: list[socket.socket] = []
        self._unsent: dict[type[FromServer], FromServer] = {}
        self._wake = asyncio.Event()

    @property
    def connected(self) -> bool:
        return self.hello is not None

    def send_table(self, table: RouteTable) -> None:
        """Have the router route by this table; only the last one matters. Acknowledged in telemetry (`acked`)."""
        self._table = table
        if self.connected:
            self._enqueue(table)

    def take_listeners(self) -> list[socket.socket]:
        """The sockets that the router listens on, which came with its greeting; the caller closes them.

        For `on_hello`: what it does not take is closed behind it, lest clients queue where nobody accepts.
        """
        taken, self._listeners = self._listeners, []
        return taken

    def send_share(self, share: RouterShare) -> None:
        """Tell the router its part of what all hold together. Nothing happens while it is not connected."""
        if self.connected:
            self._enqueue(share)

    def send_figures(self, figures: EndpointFigures) -> None:
        """Tell what engines say of their load; nothing while it is not connected, or of another version."""
        if self.hello is not None and self.hello.software_version == __version__:
            self._enqueue(figures)

    def send_stop(self, drain_s: float) -> None:
        """Have the router finish what runs and exit. Nothing happens while it is not connected."""
        if self.connected:
            self._enqueue(StopRouter(drain_s=drain_s))

    def send_stored(self, message: UsageStored) -> None:
        """Tell the router that a batch of its usage is on the disk. One that is not connected asks again."""
        if self.connected:
            self._enqueue(message)

    async def run(self) -> None:
        """Stay connected until cancelled, whatever the router does."""
        while True:
            try:
                await self._converse()
            except (OSError, FrameError, asyncio.IncompleteReadError, TimeoutError) as error:
                if self.connected:
                    log.info("the router at %s is gone: %s", self._path, error or "it closed the connection")
            finally:
                lost, self.hello = self.hello, None
                self._unsent.clear()
                self._close_listeners()
                if lost is not None and self._on_lost is not None:
                    self._on_lost()
            await asyncio.sleep(self._reconnect_s)

    async def _converse(self) -> None:
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.setblocking(False)
            with short_path(self._path) as path:
                await asyncio.get_running_loop().sock_connect(sock, path)
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                data, self._listeners = await _first_bytes(sock)
            reader, writer = await asyncio.open_unix_connection(sock=sock)
            stack.pop_all()  # it is the writer's from here on
        sender: asyncio.Task[None] | None = None
        try:
            frames: FrameReader[FromRouter] = FrameReader(FromRouter)
            while True:
                if not data:
                    return
                for message in frames.feed(data):
                    if isinstance(message, Telemetry) and self.connected:
                        self._on_telemetry(message)
                    elif isinstance(message, Hello):
                        self._greeted(message)
                        sender = sender or asyncio.create_task(self._send(writer))
                async with asyncio.timeout(None if self.connected else HELLO_TIMEOUT_S):
                    data = await reader.read(_READ_BYTES)
        finally:
            if sender is not None:
                sender.cancel()
                # Its end is waited for without swallowing a cancellation of this task in the same moment: it
                # would reconnect for ever, and the server that stops would wait for it as long.
                await asyncio.gather(sender, return_exceptions=True)
            writer.close()

    def _greeted(self, hello: Hello) -> None:
        self.hello = hello
        table = self._table
        if table is not None and (hello.table is None or hello.table.version != table.version):
            self._enqueue(table)
        self._on_hello(hello)  # what it sends goes behind the table
        self._close_listeners()

    def _close_listeners(self) -> None:
        for sock in self.take_listeners():
            sock.close()

    def _enqueue(self, message: FromServer) -> None:
        """A newer table replaces one that the router has not taken yet: the queue never grows.

        It goes behind the others: a share is of the table that was sent before it.
        """
        self._unsent.pop(type(message), None)
        self._unsent[type(message)] = message
        self._wake.set()

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            unsent, self._unsent = self._unsent, {}
            for message in unsent.values():
                writer.write(encode_frame(message))
            await writer.drain()


async def _first_bytes(sock: socket.socket) -> tuple[bytes, list[socket.socket]]:
    """What a router writes first, and the sockets that came with it. Streams would drop those."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
    descriptors = array.array("i")
    # Not recv_fds: it takes flags and does not use them (CPython 3.11), and children would inherit the sockets.
    space = socket.CMSG_LEN(_SOCKETS_MAX * descriptors.itemsize)
    data, ancillary, _, _ = sock.recvmsg(1, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(payload[: len(payload) // descriptors.itemsize * descriptors.itemsize])
    return data, [socket.socket(fileno=descriptor) for descriptor in descriptors]
