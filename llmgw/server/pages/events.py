"""GET /admin/events: tells open pages, as server-sent events, when what they draw may have changed.

A stream says that there is news, never what: the page then asks for itself again, with its own rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from llmgw.messages.findings import Finding
from llmgw.server.admin import border
from llmgw.server.admin.answers import ALWAYS, refusal
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.pages.sessions import BrowserSession
from llmgw.server.pages.still_may import StillMay

EVENTS = "/admin/events"
HEADERS = {**ALWAYS, "content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}
"""The last tells nginx to pass events on at once."""


@dataclass(frozen=True, slots=True)
class EventLimits:
    """How many streams there may be, and how often they speak."""

    per_session_max: int = 3
    """A browser opens six connections to a host over HTTP/1.1, and pages need some to ask with."""
    streams_max: int = 100
    look_s: float = 1.0
    """Between two looks, and so between two events: at least this."""
    moved_s: float = 5.0
    """Figures that only move are told this often."""
    findings_s: float = 5.0
    """Findings also come of time alone; all of them are read this often for all streams together."""
    news_s: float = 30.0
    """Told then, whatever was counted: by its absence a page knows that the stream is dead."""
    comment_s: float = 10.0
    """What stands between may hold idle connections for 30 s only."""
    stream_s: float = 600.0
    """A stream ends then, and the browser opens the next: one that nobody reads does not last either."""
    retry_s: float = 2.0


class Events:
    """The streams of one admin app. `clock` gives seconds that never run backwards."""

    def __init__(
        self,
        backend: AdminBackend,
        alive: StillMay,
        *,
        limits: EventLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend = backend
        self.alive = alive
        self.limits = EventLimits() if limits is None else limits
        self.clock = clock
        self.open: Counter[str] = Counter()
        """Whose → how many streams."""
        self._findings: list[Finding] | None = None
        self._looked_at = -float("inf")

    def routes(self) -> list[Route]:
        """The address of the streams."""
        return [Route(EVENTS, self._stream, methods=["GET"])]

    def counted(self) -> tuple[int, int]:
        """(what happened, what moved) until now; findings that came of time alone have happened."""
        now, news = self.clock(), self.backend.news
        if now - self._looked_at >= self.limits.findings_s:
            self._looked_at = now
            before, self._findings = self._findings, self.backend.server().problems
            if before is not None and before != self._findings:
                news.happen()
        return news.happened, news.moved

    async def _stream(self, request: Request) -> Response:
        border.only_parameters(request, "after")
        if request.method == "HEAD":
            return Response(headers=HEADERS)
        return _Stream(self, request)


class _Stream(Response):
    """One open page's stream."""

    def __init__(self, events: Events, request: Request) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._request = request
        session: BrowserSession | None = getattr(request.state, "session", None)
        self._whose = f"token {request.state.by}" if session is None else session.csrf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits, streams = self._events.limits, self._events.open
        if streams[self._whose] >= limits.per_session_max:
            said = (
                f"this session follows the fleet on {limits.per_session_max} pages; other pages ask now and then"
            )
        elif streams.total() >= limits.streams_max:
            said = f"{limits.streams_max} pages follow the fleet, which is the most; this one asks now and then"
        else:
            await self._run(receive, send)
            return
        await refusal(429, "too-many-streams", said, {"retry-after": "60"})(scope, receive, send)

    async def _run(self, receive: Receive, send: Send) -> None:
        streams = self._events.open
        streams[self._whose] += 1
        left = asyncio.create_task(_until_left(receive), name="page leaves")
        telling = asyncio.create_task(self._tell(send), name="page is told")
        try:
            await asyncio.wait([left, telling], return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                telling.result()
        finally:
            streams[self._whose] -= 1
            if not streams[self._whose]:
                del streams[self._whose]
            for task in (left, telling):
                task.cancel()
            await asyncio.gather(left, telling, return_exceptions=True)

    async def _tell(self, send: Send) -> None:
        events, limits, news = self._events, self._events.limits, self._events.backend.news
        began = told_at = spoke_at = events.clock()
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        # A stream that broke goes on behind what it told last, and a new one behind what its page was made of.
        after = self._request.headers.get("last-event-id") or self._request.query_params.get("after", "")
        known, told = news.counted(after), events.counted()
        first = f"retry: {limits.retry_s * 1000:.0f}\n\n"
        if known is not None and known[0] == told[0]:
            told = known
        else:
            first += self._news()
        await _say(send, first)
        while not news.ended and events.clock() - began < limits.stream_s:
            since = events.clock() - told_at
            early = since < limits.look_s
            await _within(limits.look_s - since if early else limits.look_s, news.wait(only_end=early))
            if not await events.alive(self._request):
                await _say(send, "event: over\ndata: this session has ended\n\n")
                break
            now, counted = events.clock(), events.counted()
            since = now - told_at
            happened = counted[0] != told[0] and since >= limits.look_s
            moved = counted[1] != told[1] and since >= limits.moved_s
            if happened or moved or since >= limits.news_s:
                told, told_at, spoke_at = counted, now, now
                await _say(send, self._news())
            elif now - spoke_at >= limits.comment_s:
                spoke_at = now
                await _say(send, ": still here\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _news(self) -> str:
        version = self._events.backend.news.version
        return f"event: news\nid: {version}\ndata: {version}\n\n"


async def _within(seconds: float, awaited: Awaitable[object]) -> None:
    """Wait for it, for so long at most."""
    # Not wait_for: before Python 3.12 it swallows a cancellation that meets the end.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await awaited


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _say(send: Send, words: str) -> None:
    await send({"type": "http.response.body", "body": words.encode(), "more_body": True})
