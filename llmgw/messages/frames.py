"""How messages lie on a Unix socket between control process and routers.

A frame is a 4-byte big-endian length and that many bytes of MessagePack. Pure: bytes in, messages out.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from llmgw.messages.routes import FRAME_BYTES_MAX

_LENGTH_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode

T = TypeVar("T")


class FrameError(ValueError):
    """A frame that is too long, or that is no message of the expected kinds. The connection is over."""


def encode_frame(message: msgspec.Struct) -> bytes:
    """One message as a frame. Raises FrameError when it is longer than FRAME_BYTES_MAX."""
    body = _encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise FrameError(
            f"a {type(message).__name__} of {len(body)} bytes exceeds the limit of {FRAME_BYTES_MAX}"
        )
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class FrameReader(Generic[T]):
    """Bytes in any portions → messages of one tagged union. Never holds more than one frame and one portion."""

    def __init__(self, kinds: Any, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._decode = msgspec.msgpack.Decoder(kinds).decode
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """The messages that `data` completes, in order. Raises FrameError; the reader is of no use then."""
        buffer = self._buffer
        buffer += data
        messages: list[T] = []
        start = 0
        while len(buffer) - start >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[start : start + _LENGTH_BYTES], "big")
            if length > self._frame_bytes_max:
                raise FrameError(f"a frame announces {length} bytes; the limit is {self._frame_bytes_max}")
            end = start + _LENGTH_BYTES + length
            if len(buffer) < end:
                break
            try:
                messages.append(self._decode(bytes(buffer[start + _LENGTH_BYTES : end])))
            except (msgspec.DecodeError, RecursionError) as error:
                raise FrameError(f"a frame of {length} bytes is no known message: {error}") from None
            start = end
        del buffer[:start]
        return messages
