"""ASGI middleware that writes the audit log: it sees every request that is no GET, and how it was answered.

A new route is in the log without knowing of it. Pages say their sentence in `request.state.sentence`; who asked
stands in `request.state.by`, which `Guard` sets, and the login for whoever it lets in.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmgw.server.admin.backend import AdminAudit, AdminBackend
from llmgw.server.admin.border import CATALOG_BYTES_MAX
from llmgw.server.audit.wishes import ASKS_ONLY, NOT_LET_IN, cleaned, wish_of

READS = frozenset({"GET", "HEAD", "OPTIONS"})
DEFECT = "the server failed on this request, which is a defect of it; its log has the details"
NO_ANSWER = "the connection ended before there was an answer"


class Said(msgspec.Struct):
    """What is read of an answer in JSON: a made token or key has more, which must not be kept."""

    message: str = ""


class Trail:
    """Stands around `Guard`, so that what it refuses to a session is in the log too."""

    def __init__(self, app: ASGIApp, *, backend: AdminBackend) -> None:
        self._app = app
        self._backend = backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READS:
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        asked = _Asked(scope, receive, send, self._backend.audit)
        try:
            await self._app(scope, asked.receive, asked.send)
        except Exception:
            asked.end(500, DEFECT)
            raise
        finally:
            asked.end(asked.status, "" if asked.status else NO_ANSWER)


class _Asked:
    """One request: what of its body is read, and its answer, on their way through."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, audit: AdminAudit) -> None:
        self._scope, self._receive, self._send, self._audit = scope, receive, send, audit
        self._headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        self._body = bytearray()
        self._kept = _small(self._headers.get(b"content-length", "0"))
        self._begin: Message | None = None
        self._over = False
        self.status = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if self._kept and message["type"] == "http.request":
            self._body += message.get("body", b"")
            if len(self._body) > CATALOG_BYTES_MAX:
                self._kept = False
                self._body.clear()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
            if kinds and kinds[0].startswith(b"application/json"):
                self._begin = message  # until its sentence is known: whoever has the answer finds it in the log
                return
            self.end(self.status, "")
        elif self._begin is not None:
            begin, self._begin = self._begin, None
            self.end(self.status, _sentence(message.get("body", b"")))
            await self._send(begin)
        await self._send(message)

    def end(self, status: int, message: str) -> None:
        """Put it into the log, once, if somebody is known to have asked."""
        state: dict[str, Any] = self._scope["state"]
        by = state.get("by")
        if self._over or by is None:
            return
        self._over = True
        route, path_params = self._route()
        if route in ASKS_ONLY and status not in NOT_LET_IN:
            return
        subject, summary = wish_of(route, path_params, self._scope["query_string"], bytes(self._body))
        client = self._scope.get("client")
        self._audit.record(
            by=by,
            address=client[0] if client else "localhost",
            method=self._scope["method"],
            route=route,
            subject=subject,
            summary=summary,
            status=status,
            message=cleaned(route, message or state.get("sentence", "")),
        )

    def _route(self) -> tuple[str, dict[str, Any]]:
        """(the route as it is declared, what the path says). What Guard refuses has met no route yet."""
        for route in self._scope["app"].routes:
            if isinstance(route, Route):
                match, found = route.matches(self._scope)
                if match is Match.FULL:
                    return route.path, found["path_params"]
        return cleaned("", self._scope["path"]), {}


def _small(content_length: str) -> bool:
    """Whether a body is worth keeping for its summary: a release's file is not."""
    if not (content_length.isascii() and content_length.isdigit()):
        return True
    return len(content_length) < 9 and int(content_length) <= CATALOG_BYTES_MAX


def _sentence(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=Said).message
    except msgspec.MsgspecError:
        return ""
