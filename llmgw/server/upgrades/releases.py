"""Files of releases in the server's state folder, each under its SHA-256, from their upload to the end of the
roll.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from llmgw.messages.upgrade import RELEASE_BYTES_MAX
from llmgw.release.files import ReleaseError

CHUNK_WAIT_S = 30.0
"""An upload of which nothing comes for so long is given up."""
PART = ".part"
RESERVE_BYTES = 256 * 1024 * 1024
"""An upload leaves so much of the disk to the server's database, which lies there too."""
LOOK_EVERY_BYTES = 8 * 1024 * 1024


class Releases:
    """`state`/releases (0700). One upload at a time: the disk holds two files at most."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "releases"
        self._uploading = False

    def has(self, sha256: str) -> bool:
        """True when the file is there, whole."""
        return (self.folder / sha256).is_file()

    def size_bytes(self, sha256: str) -> int:
        """Raises ReleaseError when it is not there."""
        try:
            return (self.folder / sha256).stat().st_size
        except OSError as error:
            raise ReleaseError(
                f"the release's file is not there any more ({error.strerror}); send it again"
            ) from None

    def read(self, sha256: str, offset: int, size_bytes: int) -> bytes:
        """Up to so many bytes of a file; empty behind its end. Raises ReleaseError. Blocking."""
        try:
            with (self.folder / sha256).open("rb") as file:
                file.seek(offset)
                return file.read(size_bytes)
        except OSError as error:
            raise ReleaseError(f"the release's file cannot be read ({error.strerror}); send it again") from None

    async def receive(self, sha256: str, chunks: AsyncIterator[bytes]) -> int:
        """Keep what comes under its SHA-256; how many bytes it has. Raises ReleaseError when it is another
        file, too large, too slow, or cannot be written; nothing of it is kept then.
        """
        if self._uploading:
            raise ReleaseError("another release is being sent to this server; wait until it has arrived")
        self._uploading = True
        part = self.folder / f"{secrets.token_hex(8)}{PART}"
        try:
            size = await self._write(part, sha256, chunks)
            await asyncio.to_thread(os.replace, part, self.folder / sha256)
            return size
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ReleaseError(f"the disk that holds {self.folder} is full; make room there") from None
            raise ReleaseError(f"{self.folder} cannot be written: {error.strerror}") from None
        finally:
            self._uploading = False
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def keep_only(self, sha256: str | None) -> None:
        """Remove every file but this one; an upload under way stays."""
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if path.name != sha256 and not (self._uploading and path.suffix == PART):
                    path.unlink(missing_ok=True)

    async def _write(self, part: Path, sha256: str, chunks: AsyncIterator[bytes]) -> int:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        digest, size, looked_at = hashlib.sha256(), 0, -LOOK_EVERY_BYTES
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            waiting = chunks.__aiter__()
            while True:
                try:
                    async with asyncio.timeout(CHUNK_WAIT_S):
                        chunk = await anext(waiting, None)
                except TimeoutError:
                    raise ReleaseError(
                        f"nothing of the file came for {CHUNK_WAIT_S:.0f} s; send it again"
                    ) from None
                if chunk is None:
                    break
                size += len(chunk)
                if size > RELEASE_BYTES_MAX:
                    raise ReleaseError(f"the file has more than {RELEASE_BYTES_MAX} bytes, which no release has")
                if size - looked_at >= LOOK_EVERY_BYTES:
                    looked_at = size
                    self._check_room()
                digest.update(chunk)
                # Chunks are those of the connection, 64 KiB: handing each to a thread would cost more.
                file.write(chunk)
            await asyncio.to_thread(os.fsync, file.fileno())
        if size == 0:
            raise ReleaseError("the file is empty, which no release is")
        if digest.hexdigest() != sha256:
            raise ReleaseError(
                f"what arrived is not what was to be sent (its SHA-256 is {digest.hexdigest()} instead of "
                f"{sha256}); send it again"
            )
        return size

    def _check_room(self) -> None:
        disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize
        if free < RESERVE_BYTES:
            raise ReleaseError(
                f"the disk that holds {self.folder} has {free} bytes left, and {RESERVE_BYTES} are kept for the "
                "server's database; make room there"
            )
