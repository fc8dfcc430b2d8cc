"""Every route of the admin app, asked in this process: what tests that walk all of them share."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
from starlette.routing import Route

from llmgw.server.admin.app import create_admin_app
from llmgw.server.pages.sessions import BrowserSessions
from tests.ctl.scripted import STARTED_AT

HOST = "https://admin.example:8081"
COOKIE = "__Host-llmgw-session"
# What a path's parameter is in `ScriptedBackend`; others get a word that nothing has.
KNOWN = {
    "node": "node01",
    "replica": "chat-large-1a2b",
    "fabric": "ib-a",
    "model": "org/chat-large",
    "name": "first",
}
STREAMS = ("/admin/events",)
"""They go on until whoever asks leaves."""


class Walk:
    """An admin app over a backend, and a browser that has logged in to it as `by`."""

    def __init__(self, backend: Any, by: str = "first") -> None:
        self.sessions = BrowserSessions()
        self.cookie = self.sessions.begin(by, STARTED_AT)
        self.app = create_admin_app(backend, secure=True, sessions=self.sessions)
        (self.session,) = self.sessions._sessions.values()

    def routes(self, *, reads: bool) -> Iterator[tuple[str, Route]]:
        """(method, route) of everything that only asks, or of everything else."""
        for route in self.app.routes:
            assert isinstance(route, Route), "a mount or a socket needs a walk of its own"
            for method in sorted(route.methods or ()):
                if method != "HEAD" and (method == "GET") == reads:
                    yield method, route

    def pages(self) -> list[Route]:
        """What people look at."""
        found = [route for _, route in self.routes(reads=True)]
        return [each for each in found if each.path.startswith("/admin") and each.path not in STREAMS]

    def run(self, body: Callable[[httpx.AsyncClient], Awaitable[None]], *, session: bool = True) -> None:
        """Have `body` ask, with the session's cookie or without."""

        async def asked() -> None:
            transport = httpx.ASGITransport(self.app, client=("10.0.0.9", 1))
            headers = {"cookie": f"{COOKIE}={self.cookie}"} if session else {}
            async with httpx.AsyncClient(transport=transport, base_url=HOST, headers=headers) as client:
                await body(client)

        asyncio.run(asked())


def address(route: Route, known: dict[str, str] = KNOWN) -> str:
    """The route's path with something in place of each of its parameters."""

    def filled(found: re.Match[str]) -> str:
        name, _, kind = found[1].partition(":")
        return quote(known.get(name, "x"), safe="/" if kind == "path" else "")

    return re.sub(r"{([^}]*)}", filled, route.path)


class Around:
    """An object whose methods are called through `told` (the name, then what it answered)."""

    def __init__(self, inner: Any, told: Callable[[str, Any], Any], name: str = "") -> None:
        self._inner, self._told, self._name = inner, told, name

    def __getattr__(self, name: str) -> Any:
        path = f"{self._name}.{name}".lstrip(".")
        value, told = getattr(self._inner, name), self._told
        if inspect.iscoroutinefunction(value):

            async def answered(*args: Any, **kwargs: Any) -> Any:
                return told(path, await value(*args, **kwargs))

            return answered
        if callable(value):
            return lambda *args, **kwargs: told(path, value(*args, **kwargs))
        # A part of the backend, such as `fabrics`.
        return Around(value, told, path) if hasattr(value, "__dict__") else told(path, value)
