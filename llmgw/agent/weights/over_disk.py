"""A `file://` source: a file of this node, often on a share of the network, read from an offset on."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import BinaryIO

from llmgw.agent.weights.answers import Answer, CannotFetch, Lost, Validator
from llmgw.agent.weights.own_thread import OwnThreads

READ_BYTES = 2**20


class DiskPlace:
    """Reads files of this node, in threads of its own."""

    def __init__(self, threads: OwnThreads) -> None:
        self._threads = threads

    @asynccontextmanager
    async def open(self, path: str, offset: int, validator: Validator) -> AsyncIterator[Answer]:
        """As `HttpPlace.open`; the file's inode, size and time of change stand for an ETag."""
        try:
            file = await self._threads.call(partial(_open, path))
        except OSError as error:
            raise CannotFetch(
                f"{path} cannot be read ({error.strerror}); check the source in the catalog, and whether this "
                "node has mounted what it lies on"
            ) from None
        try:
            facts = await self._threads.call(partial(_facts, file, path))
            total = facts.st_size
            now = _validator(facts)
            start = offset if offset <= total and now.same(validator) else 0
            yield Answer(start, total, now, self._chunks(file, path, start, now))
        finally:
            # Behind a read that hangs it would hang as well.
            threading.Thread(target=file.close, daemon=True).start()

    async def _chunks(self, file: BinaryIO, path: str, start: int, before: Validator) -> AsyncIterator[bytes]:
        try:
            await self._threads.call(partial(file.seek, start))
            while chunk := await self._threads.call(partial(file.read, READ_BYTES)):
                yield chunk
            after = _validator(await self._threads.call(partial(os.fstat, file.fileno())))
        except OSError as error:
            raise Lost(f"{path} cannot be read any further ({error.strerror}); check what it lies on") from None
        if not before.same(after):
            raise Lost(f"{path} was written to while it was read")


def _open(path: str) -> BinaryIO:
    # Not to wait for ever where a pipe lies in the place of a file.
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)


def _facts(file: BinaryIO, path: str) -> os.stat_result:
    facts = os.fstat(file.fileno())
    if not stat.S_ISREG(facts.st_mode):
        raise CannotFetch(f"{path} is not a file; check the source in the catalog")
    return facts


def _validator(facts: os.stat_result) -> Validator:
    return Validator(etag=f'"{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}"')
