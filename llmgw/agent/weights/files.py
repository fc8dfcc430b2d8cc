"""A file on its way to be complete: `NAME.part` and what it is a part of, then `NAME` and what it was fetched as.

Everything here blocks and may run in any thread; a part has a lock of its own, since a thread that was given up
may still be writing when the next one closes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from llmgw.agent.spec_store import write_whole
from llmgw.agent.weights.answers import Validator
from llmgw.config.sources import FETCHED_RECORD_SUFFIX, PART_RECORD_SUFFIX, PART_SUFFIX

# Engines run as another user than the agent where they can, and must read what it fetched.
FILE_MODE = 0o644
FOLDER_MODE = 0o755
HASH_BYTES = 4 * 2**20
SYNC_EVERY_BYTES = 256 * 2**20

T = TypeVar("T", bound=msgspec.Struct)


class PartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a part belongs to. `synced_bytes` are surely on the disk, in boot `boot_id` all that were written."""

    url: str
    etag: str | None = None
    modified: str | None = None
    total_bytes: int | None = None
    synced_bytes: int = 0
    boot_id: str = ""
    sha256: str | None = None
    """Of the whole file, when it is complete and was not what the catalog's checksum says."""

    @property
    def validator(self) -> Validator:
        return Validator(self.etag, self.modified)


class FetchedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a complete file was fetched as."""

    url: str
    size_bytes: int
    etag: str | None = None
    modified: str | None = None
    sha256: str | None = None
    """None: it was never needed."""
    by_hand: bool = False
    """Somebody put it there; only its checksum was taken."""

    @property
    def validator(self) -> Validator:
        return Validator(self.etag, self.modified)


def beside(target: Path, suffix: str) -> Path:
    """The file that belongs to `target`."""
    return target.with_name(target.name + suffix)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, whatever the umask says. Raises OSError."""
    if not path.is_dir():
        make_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            path.chmod(FOLDER_MODE)


def fetched_record(target: Path) -> FetchedRecord | None:
    """What was fetched to `target`; None when nothing is known of it."""
    return _read(beside(target, FETCHED_RECORD_SUFFIX), FetchedRecord)


def part_record(target: Path) -> PartRecord | None:
    """What the part beside `target` belongs to."""
    return _read(beside(target, PART_RECORD_SUFFIX), PartRecord)


def note_checksum(target: Path, url: str, sha256: str) -> None:
    """Keep what a complete file's checksum is. Raises OSError."""
    found = fetched_record(target)
    record = found or FetchedRecord(url=url, size_bytes=target.stat().st_size, by_hand=True)
    _write(beside(target, FETCHED_RECORD_SUFFIX), msgspec.structs.replace(record, sha256=sha256))


def sha256_of(path: Path, on_read: Callable[[int], None], going_on: Callable[[], bool]) -> str | None:
    """The digest of a file; `on_read` is told the bytes so far. None as soon as `going_on` says no."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(HASH_BYTES):
            if not going_on():
                return None
            digest.update(chunk)
            done += len(chunk)
            on_read(done)
    return digest.hexdigest()


class Part:
    """The part beside `target`, open for more."""

    def __init__(self, target: Path, url: str, boot_id: str) -> None:
        self.target = target
        self.record = PartRecord(url=url)
        self._boot_id = boot_id
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        # False again once it was given up: a thread that comes later must not open it anew.
        self._open = False
        self._length = 0
        # Known only while everything since the first byte went through this object.
        self._digest: hashlib._Hash | None = None

    @property
    def length(self) -> int:
        """Bytes that are there."""
        return self._length

    @property
    def complete(self) -> bool:
        """True when all is there and the length is known."""
        return self.record.total_bytes is not None and self._length == self.record.total_bytes

    def open(self) -> None:
        """Take up what an earlier try left of the same URL, as far as it can be trusted. Raises OSError."""
        with self._lock:
            make_folder(self.target.parent)
            self._open = True
            try:
                fd = self._open_file(os.O_RDWR)
            except FileNotFoundError:
                return  # made by the first byte that is worth keeping: a refusal leaves nothing behind
            found = part_record(self.target)
            length = os.fstat(fd).st_size
            if found is None or found.url != self.record.url:
                length = 0
            else:
                self.record = found
                if found.boot_id != self._boot_id:
                    # The machine went down: what was not synced may be zeros.
                    length = min(length, found.synced_bytes)
                if found.total_bytes is not None and length > found.total_bytes:
                    length = 0
            os.ftruncate(fd, length)
            os.lseek(fd, length, os.SEEK_SET)
            self._length = length

    def begin(self, validator: Validator, total_bytes: int | None) -> None:
        """Start from the first byte. Raises OSError."""
        with self._lock:
            if self._file is None and self._open:
                self._open_file(os.O_RDWR | os.O_CREAT)
            file = self._opened()
            os.ftruncate(file.fileno(), 0)
            file.seek(0)
            self._length = 0
            self._digest = hashlib.sha256()
            self.record = PartRecord(
                url=self.record.url,
                etag=validator.etag,
                modified=validator.modified,
                total_bytes=total_bytes,
                boot_id=self._boot_id,
            )
            self._save()

    def append(self, data: bytes) -> None:
        """Write more, and sync it now and then. Raises OSError."""
        with self._lock:
            file = self._opened()
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            if self._digest is not None:
                self._digest.update(data)
            self._length += len(data)
            if self._length - self.record.synced_bytes >= SYNC_EVERY_BYTES:
                self._sync()

    def end(self, total_bytes: int | None = None, sha256: str | None = None) -> None:
        """Sync what is there, and note that it is all, or that it is not what was wanted. Raises OSError."""
        with self._lock:
            if total_bytes is not None:
                self.record = msgspec.structs.replace(self.record, total_bytes=total_bytes)
            if sha256 is not None:
                self.record = msgspec.structs.replace(self.record, sha256=sha256)
            self._sync()

    def digest(self) -> str | None:
        """The SHA-256 of what is there, if it was all written by this object."""
        with self._lock:
            return self._digest.hexdigest() if self._digest is not None else None

    def finish(self, sha256: str | None) -> None:
        """Put the complete file into its place, where it appears whole or not at all. Raises OSError."""
        with self._lock:
            os.fsync(self._opened().fileno())
            record = FetchedRecord(
                url=self.record.url,
                size_bytes=self._length,
                etag=self.record.etag,
                modified=self.record.modified,
                sha256=sha256,
            )
            # In this order: no file ever stands beside the record of another one.
            beside(self.target, FETCHED_RECORD_SUFFIX).unlink(missing_ok=True)
            os.replace(beside(self.target, PART_SUFFIX), self.target)
            _write(beside(self.target, FETCHED_RECORD_SUFFIX), record)
            beside(self.target, PART_RECORD_SUFFIX).unlink(missing_ok=True)

    def close(self) -> None:
        """Keep what is there for the next try."""
        with self._lock:
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.close()
                self._file = None
            self._open = False

    def _open_file(self, flags: int) -> int:
        fd = os.open(beside(self.target, PART_SUFFIX), flags | os.O_CLOEXEC, FILE_MODE)
        self._file = os.fdopen(fd, "r+b", buffering=0)
        os.fchmod(fd, FILE_MODE)
        return fd

    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise OSError(0, "the download was given up")
        return self._file

    def _sync(self) -> None:
        os.fsync(self._opened().fileno())
        self.record = msgspec.structs.replace(self.record, synced_bytes=self._length, boot_id=self._boot_id)
        self._save()

    def _save(self) -> None:
        _write(beside(self.target, PART_RECORD_SUFFIX), self.record)


def _write(path: Path, record: msgspec.Struct) -> None:
    write_whole(path, msgspec.json.encode(record) + b"\n", mode=FILE_MODE)


def _read(path: Path, kind: type[T]) -> T | None:
    """A record; what is missing or unreadable is not known."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
