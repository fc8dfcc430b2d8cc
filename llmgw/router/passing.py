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
from llmgw.router.response_head import CHUNKED, UNTIL_CLOSE, ResponseHead
from llmgw.router.response_parser import ResponseParser
from llmgw.router.usage import RequestUsage

if TYPE_CHECKING:
    from llmgw.router.anthropic.dialect import MessagesDialect
    from llmgw.router.client import ClientConnection


class Passing:
    """The answer to one request. `begin` with the head and the first bytes that are the client's, then `feed`;
    until then `ping` and `answer` write in the gateway's own words."""

    __slots__ = (
        "_client",
        "_dialect",
        "_early",
        "_head_due",
        "_meter",
        "_parser",
        "_request",
        "_rewriting",
        "_usage",
        "status",
    )

    # Set when an answer begins.
    status: int
    """What the client is told."""
    _meter: Callable[[bytes, bool], bytes]
    """What every byte of the answer's body goes through."""
    _parser: ResponseParser
    _head_due: tuple[ResponseHead, Endpoint, Waiter | None, float]
    """What is known of the head that a filter holds back until it lets something through."""

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
        self,
        head: ResponseHead,
        parser: ResponseParser,
        endpoint: Endpoint,
        waiter: Waiter | None,
        now: float,
        data: bytes,
        done: bool,
    ) -> None:
        """The answer is this, and nothing can be taken back any more. `data` and `done` are as in `feed`, and
        `head` is changed to what the client gets. Raises BadAnswer for what is no answer."""
        client = self._client
        self._parser = parser
        self._meter = meter = self._usage.begin(head, parser).feed
        if head.status >= 400 or self._dialect is not None or self._early is not None or self._request.http10:
            self._rewriting = self._rewriting_of(head)
        if head.framing == UNTIL_CLOSE:
            client.close_after_answer()
        self.status = head.status
        if self._rewriting is not None:
            self._head_due = head, endpoint, waiter, now
            self._rewrite(self._rewriting, meter(data, done), done)
        elif done:
            data = meter(data, done)
            client.write_late(self._head(head, endpoint, waiter, now) + data)
        else:
            data = meter(data, done)
            client.write(self._head(head, endpoint, waiter, now) + data)

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
        """Further body bytes of the answer. Raises BadAnswer for what is no answer."""
        data = self._meter(data, done)
        if self._rewriting is not None:
            self._rewrite(self._rewriting, data, done)
        elif data:
            self._client.transport.write(data)  # behind a head, so that nothing is late any more

    def _rewrite(self, rewriting: Rewriting, data: bytes, done: bool) -> None:
        data = rewriting.feed(data, done)
        if not rewriting.begun and (data or done):
            rewriting.begun = True
            data = self._head(*self._head_due) + data
        if data:
            self._client.write(data)

    def _head(self, head: ResponseHead, endpoint: Endpoint, waiter: Waiter | None, now: float) -> bytes:
        """What stands before the body; nothing where the client has a head already."""
        if self._early is not None:
            return b""
        request = self._request
        lines = queue_lines(waiter, now) if request.asks_place else ()
        return answer_head(head, request, endpoint.told, self._client.keeps_alive(), lines)

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
