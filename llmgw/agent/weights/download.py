"""One file from its source into the weights folder: tried again while it is wanted, continued where it ended.

A file is in its place only when it is whole, and its checksum, where one is demanded, is right.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from llmgw.agent.weights.answers import Answer, CannotFetch, Lost, OutOfRange, Validator
from llmgw.agent.weights.files import Part, beside, fetched_record, note_checksum, sha256_of
from llmgw.agent.weights.meter import Meter, Throttle
from llmgw.config.sizes import size_words
from llmgw.config.sources import PART_SUFFIX, RemoteFile
from llmgw.messages.agent import Progress

log = structlog.get_logger("agent")

WRITE_BYTES = 4 * 2**20
WRITE_AFTER_S = 1.0
GGUF_MAGIC = b"GGUF"  # ggml's docs/gguf.md
FIRST_WAIT_S = 1.0
WAIT_S_MAX = 30.0
FIRST_TRIES_MAX = 5
"""Tries without a single byte: who never answered is more likely misspelt than on his way back."""
RESTARTS_MAX = 1
_CHANGED = "the file has changed at its source"


class OpenSource(Protocol):
    """Opens a URL from an offset on, as `HttpPlace.open` does."""

    def __call__(self, url: str, offset: int, validator: Validator) -> AbstractAsyncContextManager[Answer]: ...


@dataclass(frozen=True, kw_only=True)
class Means:
    """What all downloads of a node share. `promised_bytes` is what the others still need of the disk."""

    open: OpenSource
    boot_id: str
    reserve_bytes: int
    throttle: Throttle
    now_s: Callable[[], float]
    promised_bytes: Callable[[Download], int]
    first_wait_s: float


class Download:
    """One file being fetched. `run` in a task; everything else may be read at any time."""

    def __init__(self, file: RemoteFile, target: Path, sha256: str | None, means: Means) -> None:
        self.file = file
        self.target = target
        self.sha256 = sha256
        self.total_bytes: int | None = None
        self.news: list[str] = []
        """What whoever waits should be told, such as that it starts over; only grows."""
        self._means = means
        self._meter = Meter(means.now_s)
        self._part = Part(target, file.url, means.boot_id)
        self._hashed_bytes: int | None = None
        """The length of what is being read for its checksum."""
        self._trouble: str | None = None
        self._restarts = 0
        self._received = False
        self._refused: list[tuple[Validator, str]] = []
        """Contents that are known to have another checksum than the wanted one: what they were, and theirs."""
        self._given_up = False
        self._written_at_s = 0.0

    @property
    def left_bytes(self) -> int:
        """What it still needs of the disk, as far as that is known."""
        return max(0, (self.total_bytes or 0) - self._part.length)

    def still_s(self) -> float:
        """Seconds since anything moved."""
        return self._means.now_s() - self._meter.moved_at_s

    @property
    def trouble(self) -> str | None:
        """Why nothing moves, as a sentence; None when nothing is known to be wrong."""
        return self._trouble

    def progress(self, note: str = "") -> Progress:
        """How far it is."""
        rate = self._meter.rate_bytes_s()
        total = self.total_bytes if self._hashed_bytes is None else self._hashed_bytes
        left = None
        if rate and total is not None:
            left = max(0, total - self._meter.done_bytes) / rate
        return Progress(
            what="weights" if self._hashed_bytes is None else "checksum",
            done_bytes=self._meter.done_bytes,
            total_bytes=total,
            rate_bytes_s=None if rate is None else round(rate, 1),
            left_s=None if left is None else round(left, 1),
            note="; ".join(part for part in (note, self._trouble) if part),
        )

    async def run(self) -> None:
        """Until the file is in its place. Raises CannotFetch. Cancelled, it keeps the part for the next time."""
        try:
            if self.sha256 is None or not await self._there_already():
                await self._fetch()
        except OSError as error:
            raise CannotFetch(self._disk_failure(error)) from None
        finally:
            self._given_up = True
            await asyncio.shield(asyncio.to_thread(self._part.close))

    async def _there_already(self) -> bool:
        """Whether the file in place has the wanted checksum: it may have been fetched when none was demanded."""
        if not await asyncio.to_thread(self.target.is_file):
            return False
        record = await asyncio.to_thread(fetched_record, self.target)
        actual = record.sha256 if record is not None else None
        if actual is None:
            actual = await self._hash(self.target, (await asyncio.to_thread(self.target.stat)).st_size)
            await asyncio.to_thread(note_checksum, self.target, self.file.url, actual)
        if actual == self.sha256:
            return True
        if record is None or record.by_hand:
            raise CannotFetch(
                f"{self.target} was put there by hand and has the checksum sha256:{actual}, and the catalog says "
                f"sha256:{self.sha256}; correct the model's checksum, or remove that file"
            )
        self._refused.append((record.validator, actual))
        self._say(
            f"the {self.target.name} that is here has another checksum than the catalog says; fetches it again"
        )
        return False

    async def _fetch(self) -> None:
        part = self._part
        await asyncio.to_thread(part.open)
        self.total_bytes = part.record.total_bytes
        self._meter.restart(part.length)
        if part.record.sha256 is not None and part.record.sha256 != self.sha256 and self.sha256 is not None:
            self._refused.append((part.record.validator, part.record.sha256))
            await self._receive()
        elif not part.complete:
            if part.length:
                log.info("download goes on", file=self.file.name, done_bytes=part.length)
            await self._receive()
        await self._finish()

    async def _receive(self) -> None:
        """Try until all bytes are there."""
        tries, waits = 0, 0
        while True:
            moved = self._part.length
            try:
                # A part with a checksum is whole, and not what is wanted: it stays until another content comes.
                offset = 0 if self._part.record.sha256 is not None else self._part.length
                async with self._means.open(self.file.url, offset, self._part.record.validator) as answer:
                    await self._take(answer, offset)
                return
            except OutOfRange:
                self._start_over(_CHANGED)
                await asyncio.to_thread(self._part.begin, Validator(), None)
            except Lost as lost:
                waits = 0 if self._part.length > moved else waits
                tries = 0 if self._received else tries + 1
                if tries >= FIRST_TRIES_MAX:
                    raise CannotFetch(f"{lost} ({tries} tries)") from None
                wait_s = lost.wait_s
                if wait_s is None:
                    wait_s = min(WAIT_S_MAX, self._means.first_wait_s * 2.0 ** min(waits, 10))
                waits += 1
                self._trouble = f"{lost}; tried again"
                log.warning("download interrupted", file=self.file.shown, reason=str(lost), again_in_s=wait_s)
                await asyncio.sleep(wait_s)

    async def _take(self, answer: Answer, offset: int) -> None:
        """Write one answer's bytes."""
        part = self._part
        if answer.start not in (0, offset):
            raise Lost("the server sent another part than it was asked for")
        changed = part.record.validator.same(answer.validator) is False
        if answer.start > 0 and (
            changed
            or (answer.total_bytes is not None and part.record.total_bytes not in (None, answer.total_bytes))
        ):
            raise OutOfRange
        for validator, actual in self._refused:
            if answer.start == 0 and validator.same(answer.validator):
                raise CannotFetch(self._wrong_checksum(actual))
        chunks = aiter(answer.chunks)
        first = b""
        if answer.start == 0:
            first = await _at_least(chunks, len(GGUF_MAGIC))
            self._check_beginning(first)
            if offset:
                self._start_over(_CHANGED if changed else "the server cannot continue a download")
            await self._check_disk(answer.total_bytes)
            await asyncio.to_thread(part.begin, answer.validator, answer.total_bytes)
            self._meter.restart(0)
        else:
            await self._check_disk(answer.total_bytes or part.record.total_bytes, part.length)
        self.total_bytes = answer.total_bytes if answer.total_bytes is not None else part.record.total_bytes
        self._trouble = None
        buffer = bytearray()
        try:
            if first:
                await self._got(buffer, first)
            async for chunk in chunks:
                await self._got(buffer, chunk)
        finally:
            if buffer:
                await asyncio.shield(asyncio.to_thread(part.append, bytes(buffer)))
        if self.total_bytes is not None and part.length < self.total_bytes:
            raise Lost(f"{self.file.shown} ended {self.total_bytes - part.length} bytes early")
        if self.total_bytes is not None and part.length > self.total_bytes:
            raise CannotFetch(f"{self.file.shown} is longer than its server says; check that server")

    async def _got(self, buffer: bytearray, chunk: bytes) -> None:
        await self._means.throttle.take(len(chunk))
        buffer += chunk
        self._received = True
        self._meter.moved_to(self._part.length + len(buffer))
        now = self._means.now_s()
        if len(buffer) >= WRITE_BYTES or now - self._written_at_s >= WRITE_AFTER_S:
            self._written_at_s = now
            data = bytes(buffer)
            buffer.clear()
            if self.total_bytes is None:
                await self._check_disk(None)
            await asyncio.to_thread(self._part.append, data)

    async def _finish(self) -> None:
        """Check what is there, and put it into its place."""
        part = self._part
        if not part.length:
            raise CannotFetch(f"{self.file.shown} is empty; check the source in the catalog")
        await asyncio.to_thread(part.end, part.length)
        actual = part.record.sha256 or await asyncio.to_thread(part.digest)
        if self.sha256 is not None:
            if actual is None:
                actual = await self._hash(beside(self.target, PART_SUFFIX), part.length)
            if actual != self.sha256:
                await asyncio.to_thread(part.end, None, actual)
                raise CannotFetch(self._wrong_checksum(actual))
        await asyncio.to_thread(part.finish, actual)
        log.info("file fetched", file=self.file.name, size_bytes=part.length, sha256=actual)

    async def _hash(self, path: Path, size_bytes: int) -> str:
        self._hashed_bytes = size_bytes
        self._meter.restart(0)
        loop = asyncio.get_running_loop()

        def read(done: int) -> None:
            loop.call_soon_threadsafe(self._meter.moved_to, done)

        digest = await asyncio.to_thread(sha256_of, path, read, lambda: not self._given_up)
        self._hashed_bytes = None
        return digest or ""

    def _check_beginning(self, first: bytes) -> None:
        if self.file.name.lower().endswith(".gguf") and not first.startswith(GGUF_MAGIC):
            page = " (it looks like a web page, such as a login page)" if first.lstrip()[:1] == b"<" else ""
            raise CannotFetch(
                f"{self.file.shown} is not a GGUF file{page}: it does not begin with the letters GGUF; "
                "check the source in the catalog"
            )

    async def _check_disk(self, total_bytes: int | None, there_bytes: int = 0) -> None:
        """Raises CannotFetch when the file would not fit, or, its length unknown, when the reserve is reached."""
        folder = self.target.parent
        usage = await asyncio.to_thread(shutil.disk_usage, folder)
        # A start from the first byte gives back what the part takes.
        given_back = self._part.length if total_bytes is not None and not there_bytes else 0
        needs = max(0, (total_bytes or 0) - there_bytes - given_back)
        free = usage.free - self._means.reserve_bytes - self._means.promised_bytes(self)
        if needs > free or free <= 0:
            wanted = f"needs {size_words(needs)} more" if total_bytes is not None else "goes on"
            raise CannotFetch(
                f"{self.file.shown} {wanted}, and the disk of {folder} has {size_words(usage.free)} free, of "
                f"which {size_words(usage.free - max(0, free))} are reserved (weights.reserve, and other "
                "downloads); make room (llmgw ctl models --on-disk), or set weights.dir in agent.yaml"
            )

    def _start_over(self, why: str) -> None:
        self._restarts += 1
        if self._restarts > RESTARTS_MAX:
            raise CannotFetch(
                f"{self.file.shown} cannot be fetched as one piece: {why}, and it was started over once already; "
                "use a source that stays the same and that continues downloads"
            )
        self._say(f"{why}: fetches {self.file.shown} from the beginning again")

    def _say(self, sentence: str) -> None:
        log.warning("download", file=self.file.name, news=sentence)
        self.news.append(sentence)

    def _wrong_checksum(self, actual: str) -> str:
        return (
            f"{self.file.shown} has the checksum sha256:{actual}, and the catalog says sha256:{self.sha256}; "
            "find out which is right, and correct the model's checksum or its source"
        )

    def _disk_failure(self, error: OSError) -> str:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return (
                f"the disk of {self.target.parent} is full; make room (llmgw ctl models --on-disk), or set "
                "weights.dir in agent.yaml"
            )
        return (
            f"{error.filename or self.target} cannot be written: {error.strerror}; look at the disk that "
            "weights.dir in agent.yaml names"
        )


async def _at_least(chunks: AsyncIterator[bytes], count: int) -> bytes:
    data = b""
    async for chunk in chunks:
        data += chunk
        if len(data) >= count:
            break
    return data
