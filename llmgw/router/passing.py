"""What of an engine's answer reaches the client: its head, its body as it comes or as a filter turns it, comments
before it, and the last words where it breaks off.

Which engine's answer that is, and when there is none, is the exchange's affair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llmgw.router.answer import answer_head, broken_ending, queue_lines
from llmgw.router.early import AnswerAsEvent, EarlyAnswer
from llmgw.router.endpoint import Endpoint
from llmgw.router.engine_errors import even_errors
from llmgw.router.errors import ApiError
from llmgw.router.filters import AnswerFilter, Rewriting
from llmgw.router.queue import Waiter
from llmgw.router.request import Request
from llmgw.router.response_parser import CHUNKED, UNTIL_CLOSE, ResponseHead, ResponseParser
from llmgw.router.usage import RequestUsage

if TYPE_CHECKING:
    from llmgw.router.anthropic.dialect import MessagesDialect
    from llmgw.router.client import ClientConnection


class Passing:
    """The answer to one request. `begin` with the head that is the client's, then `feed`; until then `ping` and
    `answer` write in the gateway's own words."""

    __slots__ = (
        "_client",
        "_dialect",
        "_early",
        "_endpoint",
        "_head_due",
        "_meter",
        "_parser",
        "_request",
        "_rewriting",
        "_usage",
        "_waiter",
        "_waiting_ended",
        "status",
    )

    # Set when an answer begins.
    status: int
    """What the client is told."""
    _meter: Callable[[bytes, bool], bytes]
    """What every byte of the answer's body goes through."""
    _parser: ResponseParser
    _endpoint: Endpoint
    _waiter: Waiter | None
    _waiting_ended: float

    def __init__(
        self,
        client: ClientConnection,
        request: Request,
        dialect: MessagesDialect | None,
        usage: RequestUsage,
    ) -> None:
        self._client = client
        self._request = request
        self._dialect = dialect
        self._usage = usage
        self._early: EarlyAnswer | None = None
        """Set once the client was sent a comment, and a head before."""
        self._rewriting: Rewriting | None = None
        """What stands between the engine's answer and the client; None where the bytes go on as they come."""
        self._head_due: ResponseHead | None = None
        """The head that goes out with the first bytes of the body."""

    # Before an engine has answered.

    def ping(self, text: bytes, waiter: Waiter | None, now: float) -> None:
        """Nothing has come for this stream yet: a comment keeps it alive, the first one behind a head."""
        client, request = self._client, self._request
        written = b""
        early = self._early
        if early is None:
            early = self._early = EarlyAnswer(chunked=not request.http10)
            lines = queue_lines(waiter, now) if request.asks_place else ()
            own = request.own_lines + request.answer_lines
            written = early.head(own, lines, keep_alive=client.keeps_alive())
        client.write(written + early.comment(text))

    def answer(self, error: ApiError) -> None:
        """An error of the gateway's own is the answer."""
        if self._early is not None:
            self._client.write(self._early.error(self._event(error)))
        else:
            self._client.answer_error(error, self._request)

    # An engine's answer.

    def begin(
        self, head: ResponseHead, parser: ResponseParser, endpoint: Endpoint, waiter: Waiter | None, now: float
    ) -> None:
        """The answer is this, and nothing can be taken back any more. Its first bytes follow; `head` is changed
        to what the client gets."""
        self._meter = self._usage.begin(head, parser).feed
        self._parser = parser
        self._head_due = head
        self._endpoint = endpoint
        self._waiter = waiter
        self._waiting_ended = now
        if head.status >= 400 or self._dialect is not None or self._early is not None or self._request.http10:
            self._rewriting = self._rewriting_of(head)
        if head.framing == UNTIL_CLOSE:
            self._client.close_after_answer()
        self.status = head.status

    def _rewriting_of(self, head: ResponseHead) -> Rewriting | None:
        request, early = self._request, self._early
        if self._dialect is not None:
            filter: AnswerFilter | None = self._dialect.filter(head)
        else:
            filter = even_errors(head, request.path) if head.status >= 400 else None
        if early is not None and not (head.status < 300 and head.is_event_stream):
            filter = AnswerAsEvent(head.status, filter, self._event, named=self._dialect is not None)
            head.status = filter.status
        chunked = head.framing == CHUNKED
        if filter is not None or (request.http10 if chunked else early is not None):
            return Rewriting(head, filter, http10=request.http10, begun=early is not None)
        return None

    def feed(self, data: bytes, done: bool) -> None:
        """Body bytes of the answer: the first carry the head along. Raises BadAnswer for what is no answer."""
        data = self._meter(data, done)
        if self._rewriting is not None:
            self._rewrite(self._rewriting, data, done)
        elif self._head_due is not None:
            if done:
                self._client.write_late(self._head() + data)
            else:
                self._client.write(self._head() + data)
        elif data:
            self._client.transport.write(data)  # behind a head, so that nothing is late any more

    def _rewrite(self, rewriting: Rewriting, data: bytes, done: bool) -> None:
        data = rewriting.feed(data, done)
        if not rewriting.begun and (data or done):
            rewriting.begun = True
            data = self._head() + data
        if data:
            self._client.write(data)

    def _head(self) -> bytes:
        """What stands before the body; nothing where the client has a head already."""
        head, request = self._head_due, self._request
        assert head is not None
        self._head_due = None
        if self._early is not None:
            return b""
        lines = queue_lines(self._waiter, self._waiting_ended) if request.asks_place else ()
        return answer_head(head, request, self._endpoint.told, self._client.keeps_alive(), lines)

    # Where it breaks off.

    @property
    def untold(self) -> bool:
        """True while a filter has let nothing through: the client can still be told something else."""
        return self._rewriting is not None and not self._rewriting.begun

    def last_words(self, head: ResponseHead, error: ApiError) -> bytes | None:
        """What ends an answer of which no more comes, so that the client does not take what it has for the whole;
        None where only the cut connection can tell it."""
        rewriting, held = self._rewriting, b""
        chunk_left = 0
        if self._usage.rechunks:
            held = self._usage.give_up()
            held = rewriting.feed(held, False) if rewriting is not None and held else held
        else:
            chunk_left = self._parser.chunk_left
        if rewriting is not None:
            ending = rewriting.broken(error, self._event(error))
        else:
            ending = broken_ending(head, self._event(error), chunk_left)
        return None if ending is None else held + ending

    def _event(self, error: ApiError) -> bytes:
        """An error as an event of the stream that was asked for."""
        return error.sse_event() if self._dialect is None else self._dialect.error_event(error)
