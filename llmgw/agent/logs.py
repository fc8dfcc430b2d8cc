"""Engines' output on disk: reading pieces of it, and keeping it from filling the disk.

A stream `engine` is the file `engine.log`, written in append mode by the engine itself. Offsets count every
byte the engine ever wrote, also those that rotation has cut away.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from llmgw.messages.agent import LOG_CHUNK_BYTES_MAX

ROTATE_AT_BYTES = 64 * 1024 * 1024
TAIL_BYTES_MAX = 64 * 1024
_STREAM = re.compile(r"^[a-z0-9][a-z0-9_-]{0,63}$")
# Colours and cursor movements, which would play on an operator's terminal (ECMA-48, CSI and OSC sequences).
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class LogError(Exception):
    """A stream that cannot be read; the message is a sentence."""


@dataclass(frozen=True)
class LogPiece:
    """Text between two offsets. `offset` exceeds the one asked for where earlier output is lost."""

    offset: int
    next_offset: int
    text: str


def log_path(folder: Path, stream: str) -> Path:
    """The file of a stream. Raises LogError for a name that is none."""
    if not _STREAM.match(stream):
        raise LogError(f"{stream!r} is not the name of an output stream; `engine` is one")
    return folder / f"{stream}.log"


def read_piece(
    folder: Path, stream: str, *, offset: int | None, lines: int, secret: str | None = None
) -> LogPiece:
    """Read from `offset` (None: the last `lines` lines), at most 256 KiB. Raises LogError.

    `secret` is written as asterisks, one a byte: SGLang prints the key that it demands when it starts.
    """
    path = log_path(folder, stream)
    try:
        size = path.stat().st_size
    except OSError:
        names = sorted(one.stem for one in folder.glob("*.log")) if folder.is_dir() else []
        known = f"this shard has {', '.join(names)}" if names else "this shard has written nothing yet"
        raise LogError(f"there is no output {stream!r}; {known}") from None
    oldest = _first_kept(path)
    end = _base(path) + size
    if offset is None:
        start = max(oldest, end - LOG_CHUNK_BYTES_MAX)
        data = _read_without(secret, path, start, end - start)
        cut = _start_of_last_lines(data, lines)
        start, data = start + cut, data[cut:]
    else:
        start = min(max(offset, oldest), end)
        data = _read_without(secret, path, start, min(LOG_CHUNK_BYTES_MAX, end - start))
    data = _whole_characters(data)
    return LogPiece(offset=start, next_offset=start + len(data), text=data.decode("utf-8", "replace"))


def read_tail(folder: Path, stream: str, lines: int, *, secret: str | None = None) -> list[str]:
    """The last lines, at most 64 KiB, without colours and control characters; empty when there are none.

    `secret` as in `read_piece`.
    """
    try:
        piece = read_piece(folder, stream, offset=None, lines=lines, secret=secret)
    except LogError:
        return []
    text = piece.text.encode()[-TAIL_BYTES_MAX:].decode("utf-8", "replace")
    return [_plain(line) for line in text.split("\n")[-lines - 1 :] if line.strip()][-lines:]


def rotate(path: Path, *, at_bytes: int = ROTATE_AT_BYTES) -> bool:
    """Cut a file that has reached `at_bytes`: its content moves to `….log.1`, the file begins anew.

    The engine keeps its descriptor, so the file is copied and truncated; what it writes in between is lost,
    which its offsets show. Blocking for the copy. True when it was cut.
    """
    size = _size(path)
    if size < at_bytes:
        return False
    base = _base(path)
    beside = path.with_name(path.name + ".new")
    copied = 0
    with (
        path.open("rb") as source,
        os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as to,
    ):
        while chunk := source.read(1024 * 1024):
            to.write(chunk)
            copied += len(chunk)
    os.replace(beside, _old(path))
    base_file = _base_file(path)
    base_file.write_text(str(base + copied))
    os.truncate(path, 0)
    return True


def _plain(line: str) -> str:
    """One line as a terminal would leave it: after a carriage return, only what was written last."""
    return _CONTROLS.sub("", _ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2]))


def _old(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _base_file(path: Path) -> Path:
    return path.with_name(path.name + ".base")


def _base(path: Path) -> int:
    """How many bytes rotation has cut from the file's beginning."""
    try:
        return int(_base_file(path).read_text())
    except (OSError, ValueError):
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_without(secret: str | None, path: Path, start: int, count: int) -> bytes:
    """The same bytes as `_read`, the secret masked also where it begins before them or ends after them."""
    if not secret:
        return _read(path, start, count)
    word = secret.encode()
    before = min(len(word) - 1, max(0, start - _first_kept(path)))
    data = _read(path, start - before, before + count + len(word) - 1)
    return data.replace(word, b"*" * len(word))[before : before + count]


def _first_kept(path: Path) -> int:
    """The offset of the oldest byte that rotation has left."""
    return _base(path) - _size(_old(path))


def _read(path: Path, start: int, count: int) -> bytes:
    """Bytes by their absolute offset, from the cut-away file and the current one."""
    base = _base(path)
    data = b""
    if start < base:
        old = _old(path)
        data = _read_file(old, start - (base - _size(old)), min(count, base - start))
    if len(data) < count:
        data += _read_file(path, max(0, start - base), count - len(data))
    return data


def _read_file(path: Path, start: int, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, start))
            return file.read(count)
    except OSError:
        return b""


def _start_of_last_lines(data: bytes, lines: int) -> int:
    end = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(max(0, lines)):
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1


def _whole_characters(data: bytes) -> bytes:
    """Leave out a UTF-8 character whose rest has not been read (or written) yet."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if length > back else data
        if byte & 0xC0 != 0x80:
            return data
    return data
