"""A small HTTP/1.1 client over asyncio's TLS streams: many agents in one process must cost less than the server.

It speaks to our own endpoint only: answers carry a content-length.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable

from llmgw.agent.conversation import TransportError

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class LightTransport:
    """`Transport` of the agent's loop. `measured` is told each exchange: (path, seconds)."""

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext, measured: Callable[[str, float], None]
    ) -> None:
        self._host = host
        self._port = port
        self._context = context
        self._measured = measured
        self._idle: list[_Connection] = []

    async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """POST and read the answer. Raises TransportError."""
        begun = time.monotonic()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._exchange(head + body)
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError) as error:
            raise TransportError(f"{type(error).__name__}: {error}") from None
        self._measured(path, time.monotonic() - begun)
        return answer

    async def _exchange(self, message: bytes) -> tuple[int, bytes]:
        while self._idle:
            connection = self._idle.pop()
            if connection[0].at_eof() or connection[1].is_closing():
                connection[1].close()
                continue
            return await self._on(connection, message)
        return await self._on(
            await asyncio.open_connection(self._host, self._port, ssl=self._context, limit=1 << 20), message
        )

    async def _on(self, connection: _Connection, message: bytes) -> tuple[int, bytes]:
        reader, writer = connection
        try:
            writer.write(message)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            body = await reader.readexactly(int(head.split("content-length:", 1)[1].split("\r\n", 1)[0]))
        except BaseException:
            writer.transport.abort()
            raise
        if "connection: close" in head:
            writer.close()
        else:
            self._idle.append(connection)
        return int(head.split(" ", 2)[1]), body
