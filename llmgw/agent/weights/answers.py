"""What a place that files are fetched from answers, and how it fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass


class CannotFetch(Exception):
    """Trying again would not help; the message is a sentence that says what to do."""


class Lost(Exception):
    """This try failed and another may not; the message is a sentence. `wait_s`: as the other side asked for."""

    def __init__(self, sentence: str, wait_s: float | None = None) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s


class OutOfRange(Exception):
    """Nothing lies behind the offset: the content has changed since what is here was fetched."""


@dataclass(frozen=True)
class Validator:
    """What tells one content of a URL from another (RFC 9110 section 8.8): nothing known is both None."""

    etag: str | None = None
    modified: str | None = None

    @property
    def for_range(self) -> str | None:
        """What `If-Range` may carry: a weak ETag may not (RFC 9110 section 13.1.5)."""
        if self.etag is not None:
            return None if self.etag.startswith("W/") else self.etag
        return self.modified

    def same(self, other: Validator) -> bool | None:
        """Whether both mean the same content; None when it cannot be told."""
        if self.etag is not None and other.etag is not None:
            return self.etag == other.etag
        if self.modified is not None and other.modified is not None:
            return self.modified == other.modified
        return None


@dataclass(frozen=True)
class Answer:
    """Bytes of a file from `start` on. `total_bytes` is the whole file's length, None where nobody says it."""

    start: int
    total_bytes: int | None
    validator: Validator
    chunks: AsyncIterator[bytes]
