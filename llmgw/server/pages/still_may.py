"""Whether who asked may still ask: what goes on for long must not outlive a session, or a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request

from llmgw.server.admin.backend import AdminBackend
from llmgw.server.pages.cookies import SESSION, read_cookie
from llmgw.server.pages.sessions import BrowserSessions

StillMay = Callable[[Request], Awaitable[bool]]
"""False when the session of a request was logged out or is over its time, or its token was revoked."""


def still_may(backend: AdminBackend, sessions: BrowserSessions, *, secure: bool) -> StillMay:
    """A `StillMay` of these sessions. `secure` says whether the listener speaks TLS."""

    async def may(request: Request) -> bool:
        tokens = await backend.tokens()
        if getattr(request.state, "session", None) is None:
            return any(token.name == request.state.by for token in tokens)
        value = read_cookie(request.scope["headers"], SESSION, secure=secure)
        return value is not None and sessions.find(value, tokens) is not None

    return may
