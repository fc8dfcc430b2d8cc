"""One request from a client through the engines: from the first byte of an answer to its end, and what is told.

The answer's head is held until its first body byte, and only until then is another engine tried (invariant 8):
that is in `llmgw.router.attempts`. What of the answer reaches the client then is in `llmgw.router.passing`.
"""

from __future__ import annotations

import logging
import math
from time import monotonic

from llmgw.messages.routes import Outcome
from llmgw.router.attempts import Attempts
from llmgw.router.endpoint import Endpoint
from llmgw.router.errors import ApiError, engine_failed, out_of_time, stream_broke
from llmgw.router.filters import BadAnswer
from llmgw.router.request import OWN_ID

log = logging.getLogger(__name__)

_NOT_IMPLEMENTED = 501  # about the request, and no failure of the engine as the other 5xx are
CLIENT_LEFT = 499
WORDS_MAX = 500
"""Characters of what is told of a request: why it failed, and why it was tried again."""
NEVER = math.inf


class Exchange(Attempts):
    """A request that is passed on. The client connection owns it and is told when it is over."""

    __slots__ = ("_heard_at", "_lives")

    # Set when an answer begins.
    _lives: bool
    """What the engine sends is a sign of life."""
    _heard_at: float
    """When the engine last sent body bytes, or was last let send any."""

    # What the engine's connection calls.

    def upstream_data(self, data: bytes, done: bool, now: float) -> None:
        """Body bytes of the answer: with the first of them it is the client's, and no other engine is tried."""
        self._heard_at = now
        begins = not self.first_byte_at
        if begins:
            self._first_byte(now, done)
        endpoint = self._endpoint
        assert endpoint is not None
        if self._lives:
            endpoint.alive = True
        try:
            if begins:
                head, connection = self._head, self._connection
                assert head is not None
                assert connection is not None
                self._passing.begin(head, connection.parser, endpoint, self._waiter, now, data, done)
            else:
                self._passing.feed(data, done)
        except BadAnswer as error:
            self._break_off(f"the engine {endpoint.id} {error}")
            return
        if done:
            self._finish(self._passing.status, now)

    def upstream_lost(self, reason: str) -> None:
        """The engine's connection ended too early, or what came over it was no answer."""
        endpoint = self._endpoint
        assert endpoint is not None
        if self.first_byte_at:
            self._break_off(f"the engine {endpoint.id} {reason}")
        else:
            self._lost(endpoint, reason)

    def _first_byte(self, now: float, done: bool) -> None:
        """The answer has begun: nothing can be taken back any more."""
        head, endpoint = self._head, self._endpoint
        assert head is not None
        assert endpoint is not None
        if self._pinged:
            self._service.pings.remove(self)
        self.first_byte_at = now
        self._lives = head.status < 500  # a 500 is no sign of life
        if head.status >= 400 or endpoint.breaker.failures:
            self._judge(endpoint, head.status, now)
        else:
            self._probe = False
        if not done:
            client = self._client
            due, ends_at = now + self._model.route.chunk_timeout_s, self._ends_at
            client.deadline = due if due < ends_at else ends_at
            if client.paused:
                self.client_paused(True)
        self._release_body()

    def ping(self) -> None:
        """Called while nothing has come for this stream: its client gets a comment."""
        if self._client.paused:
            return
        text = b"ping"
        waiter = self._waiter
        if self._request.asks_place and waiter is not None and waiter.waits:
            text = b"queued %d" % self._model.admission.place_of(waiter)
        self._passing.ping(text, waiter, monotonic())

    def _judge(self, endpoint: Endpoint, status: int, now: float) -> None:
        """What an answer's status says of the endpoint that gave it."""
        if status >= 500 and status != _NOT_IMPLEMENTED:
            self._endpoint_failed(endpoint, f"it answered {status}")
        else:
            if endpoint.succeeded(now) if status < 400 else endpoint.answered(now):
                log.info("it answers again: endpoint %s", endpoint.id)
            self._probe = False

    def _break_off(self, what: str, *, engines_fault: bool = True) -> None:
        """No more comes of an answer that has begun: the client must not take what it has for the whole."""
        head, passing = self._head, self._passing
        assert head is not None
        if self._endpoint is not None and engines_fault:
            self._endpoint_failed(self._endpoint, what)
        if passing.untold:
            self._hang_up()
            self._leave_endpoint()
            self._answer(engine_failed(self._model.name, what))
            return
        last_words = passing.last_words(head, stream_broke(self._model.name, what))
        if last_words is None:
            self._finish(502, monotonic(), error=what, cut=True)
            return
        self._client.write(last_words)
        self._finish(502, monotonic(), error=what, close=True)

    # What the client's connection calls.

    def client_gone(self) -> None:
        """The client left: the engine sees its connection closed at once, whatever it was doing."""
        if not self._over:
            self._finish(CLIENT_LEFT, monotonic(), error="the client left", client_there=False)

    def client_paused(self, paused: bool) -> None:
        """The client reads slower than the engine writes, or reads again."""
        connection = self._connection
        if connection is not None:
            if paused:
                connection.pause_reading()
            else:
                self._heard_at = monotonic()
                connection.resume_reading()

    def deadline_passed(self) -> None:
        """The client's deadline is over: of the request, of the first byte, or of silence after it."""
        if self._over:
            return
        route = self._model.route
        now = monotonic()
        if now >= self._ends_at:
            self._time_is_up()
        elif self._waiter is not None and self._waiter.waits:
            self._answer(self._failure or self._model.admission.timed_out(self._waiter, now))
        elif self.first_byte_at:
            # It is set once and not with every chunk, which would cost more than to look again.
            silent_since = now if self._client.paused else self._heard_at
            due = silent_since + route.chunk_timeout_s
            if due > now:
                self._client.deadline = min(due, self._ends_at)
            else:
                name = self._endpoint.id if self._endpoint is not None else ""
                self._break_off(f"the engine {name} sent nothing more within {route.chunk_timeout_s:g} s")
        elif self._connection is not None and self._dialling is None:  # its answer is waited for
            self._hang_up()
            limit_s = route.first_byte_timeout_s
            self._attempt_failed(f"it gave no byte of an answer within {limit_s:g} s", died=True, status=504)

    def _time_is_up(self) -> None:
        """The whole request took too long. No other engine is asked, and this one is not to blame."""
        limit_s = self._model.route.request_timeout_s
        if self.first_byte_at:
            what = f"the whole request took longer than its request_timeout of {limit_s:g} s"
            self._break_off(what, engines_fault=False)
            return
        self._hang_up()
        self._leave_endpoint()
        self._answer(out_of_time(self._model.name, limit_s))

    # Ends.

    def _answer(self, error: ApiError) -> None:
        """Answer in the gateway's own words."""
        self._over = True
        client = self._client
        client.deadline = NEVER
        self._release_body()
        now = monotonic()
        self._record(error.status, now, error.message)
        self._passing.answer(error)
        client.answered(now)

    def _finish(
        self,
        status: int,
        now: float,
        *,
        error: str | None = None,
        cut: bool = False,
        close: bool = False,
        client_there: bool = True,
    ) -> None:
        self._over = True
        client = self._client
        client.deadline = NEVER
        if error is not None or not client_there:
            self._hang_up()
        endpoint = self._endpoint
        self._record(status, now, error, endpoint)
        self._leave_endpoint()
        if not self.first_byte_at:
            self._release_body()
        if not client_there:
            return
        if cut:
            client.cut()
            return
        if close:
            client.close_after_answer()
        client.answered(now)

    def _release_body(self) -> None:
        """The request will not be sent again."""
        if self._request.body:
            self._client.release_body(self._request)
        self._body = b""
        if self._dialect is not None:
            self._dialect.release()

    def _record(
        self, status: int, now: float, error: str | None = None, endpoint: Endpoint | None = None
    ) -> Outcome:
        first = self.first_byte_at
        started = self._started_at
        waiter = self._waiter
        if waiter is not None and waiter.waits:
            self._model.admission.leave(waiter, now)
        if self._pinged:
            self._service.pings.remove(self)
        tries = self._tries
        tokens = self._usage.tokens(error is not None, endpoint is not None and self._sent)
        tried = tries.tried
        retries = len(tried) - 1 if tried else 0
        if endpoint is None and tried:
            endpoint = tried[-1]
        # By place: names would cost as much as everything else here.
        outcome = Outcome(
            self._model.name,
            endpoint.id if endpoint is not None else None,
            status,
            retries,
            first - started if first else None,
            now - started,
            self._stream,
            error[:WORDS_MAX] if error is not None else None,
            tries.refused and status >= 500,
            self._caller.id,
            tokens.prompt,
            tokens.cached,
            tokens.completion,
            tokens.estimated,
            waiter.waited_s if waiter is not None else 0.0,
            "; ".join(self._failed[:retries])[:WORDS_MAX] if retries else None,
            self._request.own_line[OWN_ID].decode(),
        )
        self._service.telemetry.record(outcome)
        if tried or status == CLIENT_LEFT:
            self._caller.ended((tokens.prompt or 0) + (tokens.completion or 0), now)
        else:
            self._caller.refused(now)
        return outcome
