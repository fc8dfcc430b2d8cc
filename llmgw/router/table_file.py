"""The route table on disk (0600: it holds engines' keys), so that a restarted router serves without anybody.

The workers of one state folder share it. Each writes a file of its own and puts it in the other's place, so that
what lies there is always one whole table; all are told the same ones, so the last to write has the newest.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import msgspec

from llmgw.messages.routes import RouteTable

log = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RouteTable).decode


class TableFile:
    """Writes tables one after the other in a thread, since a slow disk must cost no request; the latest wins."""

    def __init__(self, path: Path, temporary: Path) -> None:
        """`temporary` is written first; no two processes that live may have the same."""
        self._path = path
        self._temporary = temporary
        self._next: RouteTable | None = None
        self._writer: asyncio.Task[None] | None = None

    def load(self) -> RouteTable | None:
        """The table of an earlier life. A file that is none is reported and left out."""
        try:
            return _decode(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            log.warning(
                "the route table %s cannot be read (%s); waiting for a control process", self._path, error
            )
            return None

    def save(self, table: RouteTable) -> None:
        """Have the table written soon."""
        self._next = table
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write())

    async def flush(self) -> None:
        """Wait for the last table to be on disk."""
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        while self._next is not None:
            table, self._next = self._next, None
            try:
                await asyncio.to_thread(self._replace, _encode(table))
            except OSError as error:
                log.error("the route table %s cannot be written: %s", self._path, error)

    def _replace(self, data: bytes) -> None:
        if self._holds(data):
            return
        temporary = self._temporary
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(self._path)

    def _holds(self, data: bytes) -> bool:
        """True when another worker was quicker to write this very table."""
        try:
            return self._path.stat().st_size == len(data) and self._path.read_bytes() == data
        except OSError:
            return False
