"""Engines' output on disk, read in pieces.

A stream `engine` is the file `engine.log`, written in append mode by the engine itself. Offsets count every
byte the engine ever wrote, also those that rotation (`rotation.py`) has cut away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from llmgw.agent import rotation
from llmgw.messages.agent import LOG_CHUNK_BYTES_MAX, STREAMS_MAX

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


def streams_of(folder: Path) -> list[str]:
    """The streams that have been written to, by name; a shard has a handful."""
    names = sorted(one.stem for one in folder.glob("*.log")) if folder.is_dir() else []
    return [name for name in names if _STREAM.match(name)][:STREAMS_MAX]


def read_piece(
    folder: Path, stream: str, *, offset: int | None, lines: int, secret: str | None = None
) -> LogPiece:
    """Read from `offset` (None: the last `lines` lines), at most 256 KiB. Raises LogError.

    `secret` is written as asterisks, one a byte: SGLang prints the key that it demands when it starts.
    """
    path = log_path(folder, stream)
    with rotation.LOCK:
        try:
            size = path.stat().st_size
        except OSError:
            names = streams_of(folder)
            known = f"this shard has {', '.join(names)}" if names else "this shard has written nothing yet"
            raise LogError(f"there is no output {stream!r}; {known}") from None
        kept = rotation.kept(path, size)
        if offset is None:
            start, data = _last(kept, LOG_CHUNK_BYTES_MAX)
            data = _without(secret, kept, start, data)
            cut = _start_of_last_lines(data, lines)
            start, data = start + cut, data[cut:]
        else:
            start, data = kept.read(offset, LOG_CHUNK_BYTES_MAX)
            data = _without(secret, kept, start, data)
    data = _whole_characters(data)
    return LogPiece(offset=start, next_offset=start + len(data), text=data.decode("utf-8", "replace"))


def _last(kept: rotation.Kept, count: int) -> tuple[int, bytes]:
    """(offset, the last `count` bytes), as far as they lie together."""
    start, data = kept.read(max(kept.begin, kept.end - count), count)
    if start + len(data) < kept.end:  # output between the older part and this one is lost
        start, data = kept.read(start + len(data), count)
    return start, data


def _without(secret: str | None, kept: rotation.Kept, start: int, data: bytes) -> bytes:
    """The bytes with the secret masked, also where it begins before them or ends after them."""
    if not secret:
        return data
    word = secret.encode()
    begin, before = kept.read(max(kept.begin, start - len(word) + 1), len(word) - 1)
    before = before[: max(0, start - begin)]
    if begin + len(before) != start:
        before = b""  # what stood there is lost
    follows, after = kept.read(start + len(data), len(word) - 1)
    whole = before + data + (after if follows == start + len(data) else b"")
    return whole.replace(word, b"*" * len(word))[len(before) : len(before) + len(data)]


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


def _plain(line: str) -> str:
    """One line as a terminal would leave it: after a carriage return, only what was written last."""
    return _CONTROLS.sub("", _ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2]))


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
