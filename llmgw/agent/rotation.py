"""Keeps engines' output from filling the disk, and knows which part of all that was written is still there.

An engine keeps its descriptor for life, so a file that has grown is copied and truncated: `engine.log` begins
anew (it is written in append mode), its last part is `engine.log.1`, and `engine.log.base` says at which offsets
they begin. Offsets count every byte that was ever written; what is lost in between leaves a gap in them.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import structlog

log = structlog.get_logger("agent")

ROTATE_AT_BYTES = 64 * 1024 * 1024
# Of an ended shard, for whoever asks why; fifty of them are kept.
ENDED_KEPT_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024

LOCK = threading.Lock()
"""Held while files are cut, and while they are read: a reader never sees them half moved."""


@dataclass(frozen=True)
class Kept:
    """What is left of a stream: `older` bytes from offset `begin`, and `size` bytes from offset `base`."""

    path: Path
    begin: int
    older: int
    base: int
    size: int

    @property
    def end(self) -> int:
        return self.base + self.size

    def read(self, offset: int, count: int) -> tuple[int, bytes]:
        """(where it begins, at most `count` bytes) from `offset`, or from the first behind it that is there."""
        start = min(max(offset, self.begin), self.end)
        data = b""
        if start < self.begin + self.older:
            data = _read_file(_old(self.path), start - self.begin, min(count, self.begin + self.older - start))
            if len(data) == count or start + len(data) < self.base:
                return start, data  # full, or a gap follows
        elif start < self.base:
            start = self.base
        return start, data + _read_file(self.path, start + len(data) - self.base, count - len(data))


def kept(path: Path, size: int) -> Kept:
    """What is left of the stream in `path`, which has `size` bytes now."""
    older = _size(_old(path))
    try:
        words = _base_file(path).read_text().split()
        base = int(words[0])
        begin = int(words[1]) if len(words) > 1 else base - older
    except (OSError, ValueError, IndexError):
        base, begin = 0, 0
        older = 0
    return Kept(path, begin, older, base, size)


def rotate(path: Path, *, at_bytes: int | None = None, keep_bytes: int | None = None) -> bool:
    """Cut a file that has reached `at_bytes` (64 MiB): its last `keep_bytes` (twice that) move to `….log.1`.

    So nothing but a flood between two looks loses any, and little is written during the copy. Both show in the
    offsets. Blocking for the copy. True when it was cut.
    """
    at_bytes = ROTATE_AT_BYTES if at_bytes is None else at_bytes
    keep_bytes = 2 * at_bytes if keep_bytes is None else keep_bytes
    with LOCK:
        size = _size(path)
        if size < max(1, at_bytes):
            return False
        now = kept(path, size)
        start = max(0, size - keep_bytes)
        beside = path.with_name(path.name + ".new")
        _copy(path, beside, start, keep_bytes)
        os.replace(beside, _old(path))
        # As late as possible: a flood goes on during the copy.
        base = now.base + _size(path)
        _write_base(path, base, now.base + start)
        os.truncate(path, 0)
        return True


def shrink(path: Path, *, keep_bytes: int = ENDED_KEPT_BYTES) -> None:
    """Keep the last `keep_bytes` of a stream that nobody writes any more. Blocking for the copy."""
    size = _size(path)
    if size >= keep_bytes:
        rotate(path, at_bytes=keep_bytes, keep_bytes=keep_bytes)
        return
    with LOCK:
        now = kept(path, size)
        surplus = now.older - (keep_bytes - size)
        if surplus > 0:
            beside = path.with_name(path.name + ".new")
            _copy(_old(path), beside, surplus, now.older)
            os.replace(beside, _old(path))
            _write_base(path, now.base, now.begin + surplus)


def shrink_all(folder: Path) -> None:
    """Keep the last 8 MiB of every stream of a shard that has ended. Blocking for the copies."""
    for path in folder.glob("*.log"):
        try:
            shrink(path)
        except OSError as exc:
            log.warning("output cannot be cut", path=str(path), error=exc.strerror)


class LogKeeper:
    """Keeps the files of one shard small, and notices when somebody else has cut one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, int] = {}

    def tend(self) -> None:
        """Look at every stream once. Blocking; to be called every second or so while engines write."""
        for path in self._folder.glob("*.log"):
            try:
                size = _size(path)
                seen = self._seen.get(path, 0)
                if size < seen:
                    self._count_cut(path, seen)
                self._seen[path] = 0 if rotate(path) else size
            except OSError as exc:
                log.warning("output cannot be rotated", path=str(path), error=exc.strerror)

    def _count_cut(self, path: Path, seen: int) -> None:
        """Somebody emptied the file: what was seen in it is lost, and its offsets go on behind that."""
        with LOCK:
            now = kept(path, seen)
            log.warning("output was cut by somebody else", path=str(path), lost_bytes=seen)
            _old(path).unlink(missing_ok=True)
            _write_base(path, now.end, now.end)


def _copy(source: Path, to: Path, start: int, count: int) -> None:
    with (
        source.open("rb") as file,
        os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as out,
    ):
        file.seek(start)
        # Counted: a file that grows faster than it is copied would never end.
        while count > 0 and (chunk := file.read(min(_CHUNK_BYTES, count))):
            out.write(chunk)
            count -= len(chunk)


def _old(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _base_file(path: Path) -> Path:
    return path.with_name(path.name + ".base")


def _write_base(path: Path, base: int, begin: int) -> None:
    _base_file(path).write_text(f"{base} {begin}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_file(path: Path, start: int, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(count)
    except OSError:
        return b""
