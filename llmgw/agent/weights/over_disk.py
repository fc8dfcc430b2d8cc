"""A `file://` source: a file of this node, often on a share of the network, read from an offset on."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO

from llmgw.agent.weights.answers import Answer, CannotFetch, Lost, Validator

READ_BYTES = 2**20


class DiskPlace:
    """Reads files of this node."""

    @asynccontextmanager
    async def open(self, path: str, offset: int, validator: Validator) -> AsyncIterator[Answer]:
        """As `HttpPlace.open`; the file's inode, size and time of change stand for an ETag."""
        try:
            file = await asyncio.to_thread(_open, path)
        except OSError as error:
            raise CannotFetch(
                f"{path} cannot be read ({error.strerror}); check the source in the catalog, and whether this "
                "node has mounted what it lies on"
            ) from None
        try:
            facts = await asyncio.to_thread(_facts, file, path)
            total = facts.st_size
            now = _validator(facts)
            start = offset if offset <= total and now.same(validator) else 0
            yield Answer(start, total, now, _chunks(file, path, start, now))
        finally:
            await asyncio.to_thread(file.close)


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


async def _chunks(file: BinaryIO, path: str, start: int, before: Validator) -> AsyncIterator[bytes]:
    try:
        await asyncio.to_thread(file.seek, start)
        while chunk := await asyncio.to_thread(file.read, READ_BYTES):
            yield chunk
        after = _validator(await asyncio.to_thread(os.fstat, file.fileno()))
    except OSError as error:
        raise Lost(f"{path} cannot be read any further ({error.strerror}); check what it lies on") from None
    if not before.same(after):
        raise Lost(f"{path} was written to while it was read")
