"""Answers that do not go on as they came: the framing comes off, a filter turns the payload into another, and
framing goes on again.

Pure. What a filter turns into what is its own affair; here stands only how it sits between engine and client.
"""

from __future__ import annotations

from typing import Protocol

from llmgw.router.dechunk import Dechunker
from llmgw.router.errors import ApiError
from llmgw.router.response_head import CHUNKED, LENGTH, UNTIL_CLOSE, ResponseHead


class BadAnswer(Exception):
    """An engine sent what a filter can turn into no answer; the message reads on from "the engine"."""


class AnswerFilter(Protocol):
    """Payload in, payload out, wherever it is split. One answer each.

    As long as nothing has come out the client has seen nothing of the answer, and gets an error in its place when
    BadAnswer is raised; later the answer breaks off there.
    """

    def feed(self, payload: bytes) -> bytes:
        """What becomes of this much more of the body. Raises BadAnswer."""

    def end(self) -> bytes:
        """What is left to say when the body was whole. Raises BadAnswer."""

    def broken(self, error: ApiError) -> bytes | None:
        """The last words of an answer that has begun and breaks off; b"" where they were said already, None where
        nothing can be said."""


class Rewriting:
    """One answer on its way through a filter, or out of its chunks for a client of HTTP/1.0."""

    __slots__ = ("_chunks", "_dechunker", "_filter", "_head", "begun")

    def __init__(
        self, head: ResponseHead, filter: AnswerFilter | None, *, http10: bool, begun: bool = False
    ) -> None:
        """`head` is changed to what the client gets, unless it got another (`begun`)."""
        self._filter = filter
        self._head = head
        self._dechunker = Dechunker() if head.framing == CHUNKED else None
        self._chunks = not http10
        self.begun = begun
        """The client has the answer's head, or one in its place."""
        head.framing = UNTIL_CLOSE if http10 else CHUNKED

    def feed(self, data: bytes, done: bool) -> bytes:
        """Body bytes of the engine, framed as they come → of the client's body, framed. Raises BadAnswer.

        A filter's answer of which nothing has come out before it is whole gets a length instead of chunks.
        """
        payload = self._dechunker.feed(data) if self._dechunker is not None else data
        filter = self._filter
        if filter is not None:
            payload = filter.feed(payload) if payload else b""
            if done:
                payload += filter.end()
        if done and not self.begun and filter is not None:
            head = self._head
            head.framing = LENGTH
            head.length = len(payload)
            return payload
        if not self._chunks:
            return payload
        framed = b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""
        return framed + b"0\r\n\r\n" if done else framed

    def broken(self, error: ApiError, event: bytes) -> bytes | None:
        """What ends an answer that has begun and breaks off; None where only the cut connection can tell it.

        `event` is what an event stream without a filter ends with.
        """
        if self._filter is not None:
            words = self._filter.broken(error)
        else:
            words = b"\n\n" + event if self._head.is_event_stream else None
        if words is None or not self._chunks:
            return words
        return (b"%x\r\n%b\r\n" % (len(words), words) if words else b"") + b"0\r\n\r\n"
