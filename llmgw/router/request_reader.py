"""Bytes of a client → requests in order, by llhttp, with everything bounded. No socket and no clock.

llhttp is strict about what two servers could read differently; what it lets pass is refused in `Request`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools

from llmgw.router.caller import ANYBODY, Caller
from llmgw.router.errors import ApiError, busy, too_large
from llmgw.router.known_heads import KnownHeads, read_same, split_length
from llmgw.router.limits import HEAD_BYTES_MAX, KNOWN_HEADS_MAX, PIPELINED_MAX
from llmgw.router.request import Credentials, Request, read_request, read_target

log = logging.getLogger(__name__)


# Of a body with a length: if so much is missing when its head has come, it is read without the parser.
RAW_BYTES_MIN = 64 * 1024

_BODIES_FULL = "This gateway holds as many request bodies as it may; try again."

_Known = tuple[Request, bytes, list[tuple[bytes, bytes]], bytes, bytes]
"""The request that a head made, its target and its headers, and what stands before and after its length."""
_known: KnownHeads[_Known] = KnownHeads(KNOWN_HEADS_MAX)
"""Of all connections of the process."""


class BodyBudget:
    """How many bytes of request bodies the process holds, and may hold, for all clients together."""

    __slots__ = ("bytes_max", "held")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0


class RequestReader:
    """What was read stands in `queue`; an error there is always the last, and nothing is read after it."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_body_bytes_max",
        "_budget",
        "_fresh",
        "_head_bytes",
        "_headers",
        "_identify",
        "_known_caller",
        "_known_credentials",
        "_last",
        "_may_go_on",
        "_parser",
        "_raw_left",
        "_request",
        "_silent_bytes",
        "_target",
        "in_head",
        "queue",
        "refusing",
    )

    def __init__(
        self,
        *,
        body_bytes_max: int,
        budget: BodyBudget,
        may_go_on: Callable[[], None],
        identify: Callable[[Credentials], Caller] = lambda credentials: ANYBODY,
    ) -> None:
        """`may_go_on` is called when a client waits for 100 Continue and may have it; `identify` raises ApiError
        for who is not served."""
        self._identify = identify
        self._known_credentials: Credentials = ()
        self._known_caller = ANYBODY
        """What this connection last proved itself with: clients send the same with every request."""
        self._last: _Known | None = None
        """The head that this connection said last, if it was known."""
        self._parser: Any = httptools.HttpRequestParser(self)
        self._body_bytes_max = body_bytes_max
        self._budget = budget
        self._may_go_on = may_go_on
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._request: Request | None = None
        """The request whose body is being read."""
        self._fresh: Request | None = None
        """What the last head made, before anything became of it."""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._raw_left = 0
        """What is still to come of a body that is read without the parser."""
        self._silent_bytes = 0
        """Bytes of chunk extensions or trailers since the last byte of a body."""
        self.queue: deque[Request | ApiError] = deque()
        self.in_head = False
        self.refusing = False
        """Whatever comes is thrown away: the connection ends with what is in the queue."""

    @property
    def in_body(self) -> bool:
        return self._request is not None

    @property
    def path(self) -> str:
        """What the last request that was begun asks for, as far as it has come."""
        return read_target(self._target)[0]

    @property
    def origin(self) -> bytes:
        """The page for which a browser sent the head that was read last to its end, be it refused or not."""
        if self.in_head:
            return b""
        return next((value.strip(b" \t") for name, value in self._headers if name == b"origin"), b"")

    def feed(self, data: bytes) -> None:
        """Read on. Never raises: what cannot be read ends up in the queue as an error."""
        if self.refusing:
            return
        key = b""
        begin = 0
        if self._request is None and not self.in_head and not self.queue:
            last = self._last
            same = read_same(data, last[3], last[4]) if last is not None else None
            if last is not None and same is not None and same[0] + same[1] == len(data):
                self._take_known(last, data, same[0])
                return
            key, begin = self._feed_known(data)
            if self.queue:
                return
        if self._raw_left:
            data = self._feed_raw(data)
            if not data:
                return
        began_in_head = self.in_head
        request, body_bytes = self._request, self._body_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserCallbackError:
            log.exception("a request could not be read")
            self.refuse(
                ApiError(500, "The gateway failed on this request.", type="server_error", code="internal")
            )
            return
        except httptools.HttpParserError as error:
            if not self.refusing:
                self.refuse(ApiError(400, f"This is not a request of HTTP/1.1: {error}.", code="bad_request"))
            return
        if self._fresh is not None:
            self._remember(key, begin)
            if self._request is not None and not self.refusing:
                left = self._request.content_length - self._body_bytes
                self._raw_left = left if left >= RAW_BYTES_MIN else 0
        if self.in_head and not self.refusing:
            # What a single header of a megabyte is made of never reaches `on_header`. Where in `data` this head
            # began is not known when it came behind other requests.
            if began_in_head:
                self._head_bytes += len(data)
            else:
                self._head_bytes = 0 if self.queue else len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.refuse(_head_too_large())
        elif request is not None and request is self._request and not self.refusing:
            # Extensions and trailers are nothing that is needed here, but the parser holds a line until its end.
            self._silent_bytes = self._silent_bytes + len(data) if self._body_bytes == body_bytes else 0
            if self._silent_bytes > HEAD_BYTES_MAX:
                self.refuse(_head_too_large())

    def _feed_known(self, data: bytes) -> tuple[bytes, int]:
        """Read a request whose head was read before, and that is whole. Else what the head is to be known by, and
        where in it the length stands.

        Between two requests, where this is asked, llhttp would begin anew.
        """
        end = data.find(b"\r\n\r\n") + 4
        split = split_length(data[:end]) if end > 4 else None
        if split is None or len(data) - end != split[2]:
            return b"", 0
        known = _known.get(split[0])
        if known is not None:
            self._last = known
            self._take_known(known, data, end)
        return split[:2]

    def _take_known(self, known: _Known, data: bytes, end: int) -> None:
        """Read a whole request whose head is known and ends there."""
        length = len(data) - end
        if length > self._body_bytes_max:
            self.refuse(too_large(self._body_bytes_max))
            return
        earlier, self._target, self._headers, _, _ = known
        request = earlier.again(length)
        self._recognise(request)
        if request.refusal is None:
            request.body = data[end:]
            budget = self._budget
            budget.held += length
            if budget.held > budget.bytes_max:
                budget.held -= length
                self.refuse(busy(_BODIES_FULL))
                return
        self.queue.append(request)
        if not request.keep_alive:
            self.refusing = True

    def _feed_raw(self, data: bytes) -> bytes:
        """Read on in a large body of known length: through the parser each byte would be copied once more.

        Returns what comes behind it.
        """
        part = data if len(data) <= self._raw_left else data[: self._raw_left]
        self._raw_left -= len(part)
        self.on_body(part)
        if self._raw_left or self.refusing:
            return b""
        self._parser = httptools.HttpRequestParser(self)  # the one before still waits for the body
        self.on_message_complete()
        return data[len(part) :]

    def _remember(self, key: bytes, begin: int) -> None:
        """A head was parsed. If its request is whole, it is known next time, unless it has an id of its own.
        `begin` is where in `key` its length stood."""
        fresh, self._fresh = self._fresh, None
        if (
            key
            and fresh is not None
            and len(self.queue) == 1
            and not (self.in_head or self.in_body or self.refusing)
            and all(name != b"x-request-id" for name, _ in self._headers)
        ):
            known = fresh.unused(), self._target, self._headers, key[:begin], key[begin:]
            _known.keep(key, known)

    def refuse(self, error: ApiError) -> None:
        """The error is the last answer, after those to earlier requests."""
        self._drop_body()
        self._request = None
        self.queue.append(error)
        self.refusing = True

    def release_body(self, request: Request) -> None:
        """The request's body will not be sent again."""
        if request.body:
            self._budget.held -= len(request.body)
            request.body = b""

    def drop_queue(self) -> None:
        """Nothing of what was read will be answered."""
        for item in self.queue:
            if isinstance(item, Request):
                self.release_body(item)
        self.queue.clear()

    def close(self) -> None:
        """The connection is over."""
        self.refusing = True
        self._drop_body()
        self.drop_queue()
        self._parser = None  # it refers back to this object

    # What llhttp calls, within `feed`.

    def on_message_begin(self) -> None:
        if self.refusing:
            return  # what is left of a read; the refused head is still asked for its origin
        self._target = b""
        self._headers = []
        self._head_bytes = 0
        self._silent_bytes = 0
        self.in_head = True
        self._drop_body()

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            return  # a trailer
        self._head_bytes += len(name) + len(value) + 4
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.in_head = False
        if self.refusing:
            return
        parser = self._parser
        if self._head_bytes + len(self._target) > HEAD_BYTES_MAX:
            self.refuse(_head_too_large())
            return
        try:
            request = read_request(
                parser.get_method(),
                self._target,
                parser.get_http_version(),
                self._headers,
                keep_alive=parser.should_keep_alive(),
            )
        except ApiError as error:
            self.refuse(error)
            return
        self._fresh = request
        self._take(request)

    def _take(self, request: Request) -> None:
        """A head is whole, be it parsed or known."""
        if request.content_length > self._body_bytes_max:
            self.refuse(too_large(self._body_bytes_max))
            return
        self._request = request
        self._recognise(request)
        self.go_on()

    def go_on(self) -> None:
        """Let a client send the body that it holds back, once the requests before it are out of the way."""
        request = self._request
        if request is not None and request.expects_continue and not self.queue:
            request.expects_continue = False
            self._may_go_on()

    def on_body(self, part: bytes) -> None:
        if self.refusing:
            return
        size = len(part)
        self._body_bytes += size
        budget = self._budget
        # What a stranger sends is read, so that the connection may stay, and thrown away: it costs no memory.
        if self._request is None or self._request.refusal is None:
            self._body.append(part)
            budget.held += size
        if self._body_bytes > self._body_bytes_max:
            self.refuse(too_large(self._body_bytes_max))
        elif budget.held > budget.bytes_max:
            self.refuse(busy(_BODIES_FULL))

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        if self.refusing or request is None or self._parser.should_upgrade():
            return
        body = self._body
        request.body = body[0] if len(body) == 1 else b"".join(body)
        self._body = []
        self._body_bytes = 0
        self.queue.append(request)
        if not request.keep_alive or len(self.queue) > PIPELINED_MAX:
            self.refusing = True

    def _recognise(self, request: Request) -> None:
        credentials = request.credentials
        if credentials and credentials == self._known_credentials and not self._known_caller.gone:
            request.caller = self._known_caller
            return
        try:
            request.caller = caller = self._identify(credentials)
        except ApiError as error:
            request.refusal = error
            return
        if caller.id:
            self._known_credentials, self._known_caller = credentials, caller

    def _without_upgrade(self, rest: bytes) -> None:
        """Clients that offer HTTP/2 (Java's, curl's) are answered in HTTP/1.1 (RFC 9110 section 7.8).

        llhttp takes an offered upgrade for a made one and leaves the body alone, so the head is read again
        without the offer.
        """
        if self.refusing:
            return
        method = self._parser.get_method()
        if method == b"CONNECT":
            self.refuse(ApiError(405, "This is no proxy; CONNECT is not served.", code="bad_request"))
            return
        lines = [b"%b %b HTTP/1.1" % (method, self._target)]
        for name, value in self._headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(t for t in tokens if t.lower() not in (b"upgrade", b"http2-settings"))
            if name not in (b"upgrade", b"http2-settings", b"expect") and (name != b"connection" or value):
                lines.append(b"%b: %b" % (name, value))
        self._request = None
        self._parser = httptools.HttpRequestParser(self)
        self.feed(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _drop_body(self) -> None:
        if self._body:
            self._budget.held -= self._body_bytes
            self._body = []
        self._body_bytes = 0


def _head_too_large() -> ApiError:
    return ApiError(
        431,
        f"The request's head exceeds {HEAD_BYTES_MAX} bytes; send fewer or shorter headers.",
        code="bad_request",
    )
