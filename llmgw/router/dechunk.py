"""Takes the chunk framing off a body, for clients of HTTP/1.0, which know none."""

from __future__ import annotations

import re

_SIZE = re.compile(rb"[0-9a-fA-F]+")


class Dechunker:
    """Chunked bytes in any portions → payload. The framing has been checked by ResponseParser before."""

    __slots__ = ("_held", "_left", "_over")

    def __init__(self) -> None:
        self._held = b""
        self._left = 0
        """Bytes of the open chunk, its CRLF included."""
        self._over = False

    def feed(self, data: bytes) -> bytes:
        """The payload within `data`; nothing after the last chunk."""
        payload: list[bytes] = []
        if self._held:
            data = self._held + data
            self._held = b""
        position = 0
        size = len(data)
        while position < size and not self._over:
            if self._left:
                taken = min(self._left, size - position)
                payload.append(data[position : position + max(0, min(taken, self._left - 2))])
                self._left -= taken
                position += taken
                continue
            end = data.find(b"\n", position)
            if end < 0:
                self._held = data[position:]
                break
            match = _SIZE.match(data, position)
            length = int(match[0], 16) if match else 0
            position = end + 1
            if length:
                self._left = length + 2
            else:
                self._over = True
        return b"".join(payload)
