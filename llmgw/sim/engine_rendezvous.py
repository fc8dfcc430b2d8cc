"""How the shards of one simulated replica find each other: lines of JSON over one TCP connection a worker.

    worker → leader   {"group": "r-7", "rank": 1, "nnodes": 3}
    leader → worker   {"joined": true}, then {"start": true} when all are there, or {"refused": "sentence"}

Then the leader calls about once a second, with the number of tokens made so far, and each worker answers. This
stands for the collectives of a real engine: while a worker answers nothing (a frozen or cut-off node), the leader
generates nothing either, and each token moves data at every rank. The connection is held for life, and its end is
how each side learns of the other's death.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

from llmgw.sim.engine_http import bind

LINE_BYTES_MAX = 4096
GREETING_TIMEOUT_S = 10.0
DIAL_TIMEOUT_S = 5.0
DIAL_PAUSE_FIRST_S = 0.05
DIAL_PAUSE_MAX_S = 1.0
CALL_S = 1.0
SILENT_S = 2.5
"""A worker that answered nothing for this long holds the whole replica up."""


class EngineError(Exception):
    """Why the engine ends: one sentence for its error output."""


class Leader:
    """Rank 0's side: it waits at an address until every worker has joined."""

    def __init__(self, group: str, nnodes: int) -> None:
        self._group = group
        self._nnodes = nnodes
        self._joined: dict[int, asyncio.StreamWriter] = {}
        self._complete = asyncio.Event()
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None
        self._heard_at: dict[int, float] = {}
        self._calling: asyncio.Task[None] | None = None
        self.tokens: Callable[[], int] = lambda: 0
        """Asked before each call: the tokens that the replica has made so far."""

    @property
    def held_up(self) -> bool:
        """True while a worker that had joined answers nothing."""
        now = asyncio.get_running_loop().time()
        return any(now - heard_at > SILENT_S for heard_at in self._heard_at.values())

    async def open(self, host: str, port: int) -> None:
        """Listen for workers. Raises OSError when the address is taken."""
        self._server = await asyncio.start_server(self._welcome, sock=bind(host, port), limit=LINE_BYTES_MAX)

    async def gather(self, timeout_s: float) -> None:
        """Wait for every worker and tell them to start.

        Raises EngineError with `only 1 of 3 workers joined before the deadline`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._complete.wait()
        except TimeoutError:
            sentence = f"only {len(self._joined)} of {self._nnodes - 1} workers joined before the deadline"
            for writer in self._joined.values():
                _send(writer, {"refused": sentence})
            await asyncio.gather(*(_drain(writer) for writer in self._joined.values()))
            raise EngineError(sentence) from None
        for writer in self._joined.values():
            _send(writer, {"start": True})
        self._heard_at = dict.fromkeys(self._joined, asyncio.get_running_loop().time())
        self._calling = asyncio.create_task(self._call())

    async def _call(self) -> None:
        while True:
            await asyncio.sleep(CALL_S)
            tokens = self.tokens()
            for writer in self._joined.values():
                # Whoever takes nothing needs no more calls to answer when it goes on.
                if writer.transport.get_write_buffer_size() == 0:
                    _send(writer, {"call": True, "tokens": tokens})

    async def loss(self) -> str:
        """Wait until a worker that had joined is gone; the answer is the sentence that says which."""
        return await asyncio.shield(self._lost)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank: int | None = None
        try:
            greeting = await _receive(reader, GREETING_TIMEOUT_S)
            refusal = self._refusal(greeting)
            if refusal is not None:
                _send(writer, {"refused": refusal})
                await _drain(writer)
                return
            assert greeting is not None
            rank = greeting["rank"]
            _watch_peer(writer)
            self._joined[rank] = writer
            _send(writer, {"joined": True})
            if len(self._joined) == self._nnodes - 1:
                self._complete.set()
            while await reader.read(LINE_BYTES_MAX):
                if rank in self._heard_at:
                    self._heard_at[rank] = asyncio.get_running_loop().time()
        except (OSError, asyncio.CancelledError):
            # A reset is an end like any other, and the process's own end is told by others: asyncio in Python
            # 3.11 prints a traceback for a cancelled callback of a server.
            pass
        finally:
            writer.close()
            if rank is not None and not self._lost.done():
                self._lost.set_result(f"the worker of rank {rank} is gone; its connection has closed")

    def _refusal(self, greeting: dict[str, Any] | None) -> str | None:
        if greeting is None or not {"group", "rank", "nnodes"} <= greeting.keys():
            return "this port is the rendezvous of a simulated engine, and what came was no worker's greeting"
        group, rank, nnodes = greeting["group"], greeting["rank"], greeting["nnodes"]
        if group != self._group:
            return f"this is the rendezvous of replica {self._group!r}, and the worker belongs to {group!r}"
        if nnodes != self._nnodes:
            return f"this replica has {self._nnodes} shards, and the worker was started for {nnodes}"
        if type(rank) is not int or not 0 < rank < self._nnodes:
            return f"this replica has workers of rank 1 to {self._nnodes - 1}, and no rank {rank!r}"
        if rank in self._joined:
            return f"rank {rank} has joined already"
        return None


class Worker:
    """A worker's side: a connection to the leader that is held for life."""

    def __init__(self, leader: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._leader = leader
        self._reader = reader
        self._writer = writer
        self.heard_tokens: Callable[[int], None] = lambda tokens: None
        """Told at each call how many tokens the replica has made so far."""

    @classmethod
    async def join(cls, host: str, port: int, *, group: str, rank: int, nnodes: int, timeout_s: float) -> Worker:
        """Dial until the leader answers. Raises EngineError when it refuses, or does not answer in time."""
        leader = f"{host} port {port}"
        pause_s = DIAL_PAUSE_FIRST_S
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    worker = await cls._dial(leader, host, port, {"group": group, "rank": rank, "nnodes": nnodes})
                    if worker is not None:
                        return worker
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, DIAL_PAUSE_MAX_S)
        except TimeoutError:
            raise EngineError(
                f"rank {rank} could not join: no leader answered at {leader} before the deadline"
            ) from None

    async def start(self) -> None:
        """Wait until every worker has joined. Raises EngineError when that fails."""
        answer = await _receive(self._reader, None)
        if answer is None:
            raise EngineError(self._gone())
        if not answer.get("start"):
            raise EngineError(f"the leader at {self._leader} gave up: {answer.get('refused', answer)}")

    async def loss(self) -> str:
        """Wait until the leader is gone; the answer is the sentence that says so."""
        try:
            while line := await self._reader.readline():
                self._hear(line)
                _send(self._writer, {"here": True})
        except (OSError, ValueError):
            pass
        return self._gone()

    def _hear(self, line: bytes) -> None:
        try:
            tokens = json.loads(line).get("tokens")
        except (ValueError, AttributeError):
            return
        if type(tokens) is int:
            self.heard_tokens(tokens)

    @classmethod
    async def _dial(cls, leader: str, host: str, port: int, greeting: dict[str, Any]) -> Worker | None:
        """One try. None when nobody listens (yet), or the leader went away before it answered."""
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, port, limit=LINE_BYTES_MAX)
        except (OSError, TimeoutError):
            return None
        try:
            _send(writer, greeting)
            answer = await _receive(reader, GREETING_TIMEOUT_S)
        except OSError:
            answer = None
        if answer is not None and answer.get("joined"):
            _watch_peer(writer)
            return cls(leader, reader, writer)
        writer.close()
        if answer is not None:
            raise EngineError(f"the leader at {leader} refused: {answer.get('refused', answer)}")
        return None

    def _gone(self) -> str:
        return f"the leader at {self._leader} is gone; its connection has closed"


async def _receive(reader: asyncio.StreamReader, timeout_s: float | None) -> dict[str, Any] | None:
    """One line of JSON; None for the end of the connection, for silence, and for anything that is no object."""
    try:
        async with asyncio.timeout(timeout_s):
            message = json.loads(await reader.readline())
    except (TimeoutError, ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


async def _drain(writer: asyncio.StreamWriter) -> None:
    try:
        await writer.drain()
    except OSError:
        pass  # Whoever has left need not be told.


def _watch_peer(writer: asyncio.StreamWriter) -> None:
    """Let the kernel notice a host that vanished without closing (a cut cable, a reset VM) in about 20 s."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
