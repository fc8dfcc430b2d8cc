"""The Unix socket over which the control process sends tables and reads telemetry."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from llmgw.messages.frames import FrameError, FrameReader, encode_frame
from llmgw.messages.routes import (
    EndpointFigures,
    FromServer,
    Hello,
    RouterShare,
    RouteTable,
    StopRouter,
    UsageStored,
)
from llmgw.router.handing_over import hand_over
from llmgw.router.limits import IDLE_NOTICE_S, LAST_USAGE_S, TELEMETRY_S
from llmgw.router.service import Service
from llmgw.router.table_file import TableFile

log = logging.getLogger(__name__)


class ControlServer:
    """At most one control process at a time: the newest to connect. Its absence changes nothing."""

    def __init__(
        self,
        service: Service,
        table_file: TableFile,
        *,
        hello: Callable[[], Hello],
        stop: Callable[[float], None],
        listeners: Callable[[], Sequence[socket.socket]] = tuple,
    ) -> None:
        """`listeners` are given to every control process that connects."""
        self._service = service
        self._table_file = table_file
        self._hello = hello
        self._stop = stop
        self._listeners = listeners
        self._connection: ControlConnection | None = None
        self._notice: asyncio.TimerHandle | None = None
        service.notify = self.notify
        service.telemetry.many = partial(self.notify, True)

    def accept(self) -> ControlConnection:
        """The protocol for one more connection."""
        return ControlConnection(self)

    def notify(self, at_once: bool) -> None:
        """The control process waits for what just happened: send telemetry soon, many causes in one frame."""
        if self._connection is None:
            return
        if self._notice is not None:
            if not at_once:
                return
            self._notice.cancel()
        self._notice = self._service.loop.call_later(0 if at_once else IDLE_NOTICE_S, self.send_telemetry)

    def send_telemetry(self) -> None:
        """Send what has been collected, unless nobody is there or the last frames were not read yet."""
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None
        connection = self._connection
        if connection is not None and not connection.paused:
            service = self._service
            telemetry = service.telemetry.take(
                service.table, time.monotonic(), draining=service.draining, keys=service.keys.take_demand()
            )
            connection.send(encode_frame(telemetry))

    async def run(self) -> None:
        """Telemetry at its interval, for ever."""
        while True:
            await asyncio.sleep(TELEMETRY_S)
            self.send_telemetry()

    async def deliver_usage(self) -> None:
        """The router ends: have what is left of its usage acknowledged, while there is somebody."""
        ledger = self._service.telemetry.usage
        until = time.monotonic() + LAST_USAGE_S
        while ledger.waiting and self._connection is not None and time.monotonic() < until:
            self.send_telemetry()
            await asyncio.sleep(0.05)

    @property
    def connected_now(self) -> bool:
        """True while a control process is there."""
        return self._connection is not None

    def close(self) -> None:
        """The router ends: say a last word and hang up."""
        self.send_telemetry()
        if self._connection is not None:
            self._connection.close()

    # What a connection tells.

    def connected(self, connection: ControlConnection) -> None:
        if self._connection is not None:
            log.info("a newer control process took over")
            self._connection.close()
        self._connection = connection
        self._service.telemetry.share = 0  # this one has sent none yet
        self._service.telemetry.usage.connected()
        self._service.keys.begin_moves()
        connection.greet(encode_frame(self._hello()), self._listeners())

    def disconnected(self, connection: ControlConnection) -> None:
        if self._connection is connection:
            self._connection = None

    def received(self, connection: ControlConnection, message: FromServer) -> None:
        if connection is not self._connection:
            return
        if isinstance(message, StopRouter):
            self._stop(message.drain_s)
        elif isinstance(message, RouterShare):
            self._service.share(message)
        elif isinstance(message, EndpointFigures):
            self._service.table.take_figures(message, time.monotonic())
        elif isinstance(message, UsageStored):
            usage = self._service.telemetry.usage
            usage.stored(message)
            if usage.waiting:
                self.send_telemetry()  # what has waited for this need not wait for the next interval
        elif isinstance(message, RouteTable):
            if self._service.apply(message):
                self._table_file.save(message)
            self.notify(True)


class ControlConnection(asyncio.Protocol):
    """Frames in, frames out. What is no frame ends this connection and nothing else."""

    def __init__(self, server: ControlServer) -> None:
        self._server = server
        self._reader: FrameReader[FromServer] = FrameReader(FromServer)
        self._transport: asyncio.Transport | None = None
        self.paused = False
        """True while frames are not read: nothing is sent, outcomes are dropped and counted."""

    def send(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def greet(self, frame: bytes, listeners: Sequence[socket.socket]) -> None:
        """Write the first frame, and with its first byte hand over the listening sockets."""
        if self._transport is not None:
            written = hand_over(self._transport, frame, listeners) if listeners else 0
            self._transport.write(frame[written:])

    def close(self) -> None:
        if self._transport is not None:
            # An end that reads nothing must not keep a replaced connection for ever.
            if self.paused:
                self._transport.abort()
            else:
                self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connected(self)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._reader.feed(data)
        except FrameError as error:
            log.warning("the control connection is closed: %s", error)
            self._server.disconnected(self)
            if self._transport is not None:
                self._transport.abort()
            return
        for message in messages:
            self._server.received(self, message)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.disconnected(self)
