"""One request to `/v1/messages` or `/v1/messages/count_tokens` on its way: as it is where the engine serves that
path, else in translation; and what is made of the answer.

Which engines serve it is found out by asking: one that answers 404, 405 or 501 gets the same request at once
again, in translation, and is not asked as it is for the next NATIVE_ASKED_AGAIN_S.
"""

from __future__ import annotations

from collections.abc import Callable

from llmgw.messages.routes import AnthropicWay
from llmgw.router.anthropic.answer import to_count, to_message
from llmgw.router.anthropic.errors import error_body, error_event
from llmgw.router.anthropic.request import read_messages, to_chat, to_tokenize
from llmgw.router.anthropic.stream import StreamFilter
from llmgw.router.endpoint import Endpoint
from llmgw.router.engine_errors import ERROR_BYTES_MAX, read_error, say_json, told_status
from llmgw.router.errors import ApiError, busy
from llmgw.router.filters import AnswerFilter, BadAnswer
from llmgw.router.request import Request
from llmgw.router.request_reader import BodyBudget
from llmgw.router.response_head import NONE, ResponseHead

MESSAGES_PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
NATIVE_ASKED_AGAIN_S = 600.0
"""An endpoint's address may get a newer engine."""
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Of a whole answer that is translated, and held for it."""
_NOT_SERVED = frozenset((404, 405, 501))
_NO_COUNT = (
    "The engine of this model counts no tokens of messages: it serves neither /v1/messages/count_tokens nor "
    "/tokenize. The usage of an answer tells what its prompt took."
)


class MessagesDialect:
    """How one such request is put to an endpoint. It is translated once, when the first endpoint needs that."""

    __slots__ = ("_budget", "_model", "_request", "_stop_sequences", "_translated", "_translating", "_way")

    def __init__(self, request: Request, way: AnthropicWay, budget: BodyBudget) -> None:
        """`budget` counts the translated body as long as it is held, see `release`."""
        self._request = request
        self._way = way
        self._budget = budget
        self._translating = False
        """The endpoint that is asked now is asked in translation."""
        self._translated = b""
        self._model = ""
        self._stop_sequences: list[str] = []

    def put_to(self, endpoint: Endpoint, now: float) -> tuple[bytes, bytes]:
        """Target and body for this endpoint. Raises ApiError for what cannot be translated."""
        request, way = self._request, self._way
        self._translating = way == "translate" or (
            way == "auto" and endpoint.unserved.get(request.path, 0.0) > now
        )
        if not self._translating:
            return request.upstream_target(), request.body
        if not self._translated:
            self._translate()
        return b"/tokenize" if request.path == COUNT_PATH else b"/v1/chat/completions", self._translated

    def _translate(self) -> None:
        read = read_messages(self._request.body)
        self._model = read.model
        self._stop_sequences = read.stop_sequences or []
        body = to_tokenize(read) if self._request.path == COUNT_PATH else to_chat(read)
        budget = self._budget
        if budget.held + len(body) > budget.bytes_max:
            raise busy("This gateway holds as many request bodies as it may; try again.")
        budget.held += len(body)
        self._translated = body

    def release(self) -> None:
        """The request will not be sent again."""
        self._budget.held -= len(self._translated)
        self._translated = b""

    def not_served(self, status: int, endpoint: Endpoint, now: float) -> bool:
        """True when the engine has no such path: it is to be asked once more, in translation."""
        if self._translating or self._way != "auto" or status not in _NOT_SERVED:
            return False
        endpoint.unserved[self._request.path] = now + NATIVE_ASKED_AGAIN_S
        return True

    def filter(self, head: ResponseHead) -> AnswerFilter | None:
        """What the answer goes through, None for nothing. The head is changed to what comes out."""
        request_id = self._request.request_id
        head.headers = [(name, value) for name, value in head.headers if name != b"request-id"]
        head.headers = [
            *head.headers,
            (b"request-id", request_id),
        ]  # the list is shared by answers with the same head
        if head.framing == NONE:
            return None
        if head.status >= 400:
            return self._error_filter(head)
        if not self._translating:
            return None
        model, sequences = self._model, self._stop_sequences
        if head.is_event_stream:
            return StreamFilter(model, sequences, request_id)
        say_json(head)
        if self._request.path == COUNT_PATH:
            return _Whole(to_count, ANSWER_BYTES_MAX)
        return _Whole(lambda body: to_message(body, model, sequences), ANSWER_BYTES_MAX)

    def error_event(self, error: ApiError) -> bytes:
        """What ends a stream that goes on as it is, when it breaks."""
        return error_event(error.status, error.message, self._request.request_id)

    def _error_filter(self, head: ResponseHead) -> AnswerFilter:
        said, request_id = head.status, self._request.request_id
        status = told_status(head)
        counts = self._translating and self._request.path == COUNT_PATH and said in _NOT_SERVED

        def turn(body: bytes) -> bytes:
            return error_body(
                status, _NO_COUNT if counts else read_error(body, said, self._request.path).message, request_id
            )

        return _Whole(turn, ERROR_BYTES_MAX, cut=True)


class _Whole:
    """An answer that is turned into another when it is whole. `cut`: of a larger one the beginning is enough."""

    __slots__ = ("_bytes_max", "_cut", "_parts", "_size", "_turn")

    def __init__(self, turn: Callable[[bytes], bytes], bytes_max: int, *, cut: bool = False) -> None:
        self._turn = turn
        self._bytes_max = bytes_max
        self._cut = cut
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, payload: bytes) -> bytes:
        """Nothing until the end. Raises BadAnswer when it is too large."""
        if self._size <= self._bytes_max:
            self._parts.append(payload)
        self._size += len(payload)
        if self._size > self._bytes_max and not self._cut:
            raise BadAnswer(f"sent an answer of more than {self._bytes_max} bytes")
        return b""

    def end(self) -> bytes:
        """The answer. Raises BadAnswer."""
        return self._turn(b"".join(self._parts))

    def broken(self, error: ApiError) -> None:
        """Nothing of it has been said."""
