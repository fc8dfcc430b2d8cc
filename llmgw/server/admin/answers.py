"""How the admin API answers: every body is JSON, every refusal is a `Refusal` with a sentence.

It knows HTTP and nothing of the fleet.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmgw.messages.agent import Refusal
from llmgw.server.admin.backend import AdminError

_log = logging.getLogger(__name__)
_NAMES_SHOWN_MAX = 20
GZIP_BYTES_MIN = 2048
GZIP_LEVEL = 3
ALWAYS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def answer(value: Any, status: int = 200) -> Response:
    """A message type (or a list of them) as JSON."""
    return Response(msgspec.json.encode(value), status, ALWAYS, media_type="application/json")


async def answer_small(request: Request, value: Any) -> Response:
    """The same, compressed for whoever takes that, where it pays: a map of 10,000 adapters shrinks to a tenth."""
    body = msgspec.json.encode(value)
    headers = {**ALWAYS, "vary": "accept-encoding"}
    if len(body) >= GZIP_BYTES_MIN and takes_gzip(request.headers):
        body = await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL)
        headers["content-encoding"] = "gzip"
    return Response(body, 200, headers, media_type="application/json")


def takes_gzip(asked: Headers) -> bool:
    """Whether who asks takes a compressed answer."""
    return "gzip" in [each.partition(";")[0].strip() for each in asked.get("accept-encoding", "").split(",")]


def refusal(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    """A `Refusal`; `code` is stable for programs, `message` a sentence for people."""
    body = msgspec.json.encode(Refusal(code=code, message=message))
    return Response(body, status, {**ALWAYS, **(headers or {})}, media_type="application/json")


def not_found(what: str, name: str, known: list[str]) -> AdminError:
    """404 for a name, with the names that exist (at most 20 of them)."""
    if not known:
        return AdminError(404, f"unknown-{what}", f"there is no {what} {name!r}; there are none at all")
    shown = ", ".join(sorted(known)[:_NAMES_SHOWN_MAX])
    more = f" and {len(known) - _NAMES_SHOWN_MAX} more" if len(known) > _NAMES_SHOWN_MAX else ""
    return AdminError(404, f"unknown-{what}", f"there is no {what} {name!r}; known: {shown}{more}")


async def refuse_admin_error(request: Request, error: Exception) -> Response:
    """The backend's own refusals, as they are."""
    assert isinstance(error, AdminError)
    return refusal(error.status, error.code, error.message)


async def refuse_store_error(request: Request, error: Exception) -> Response:
    """The store cannot be read or written now: a sentence of its own, and no defect of the server."""
    return refusal(503, "store", str(error))


async def refuse_http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, or no such method on it."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 404:
        message = f"there is no route {request.url.path}; docs/api.md lists all of them"
        return refusal(404, "unknown-route", message, headers)
    if error.status_code == 405:
        # Starlette names only the methods of the first route with this path.
        routes = [route for route in request.app.routes if isinstance(route, Route)]
        here = [route for route in routes if route.matches(request.scope)[0] != Match.NONE]
        allowed = ", ".join(sorted({method for route in here for method in route.methods or ()}))
        message = f"{request.url.path} does not answer to {request.method}; it does to {allowed}"
        return refusal(405, "wrong-method", message, {"allow": allowed})
    return refusal(error.status_code, "refused", str(error.detail), headers)


class Answers:
    """ASGI middleware: a defect becomes a JSON 500 with a sentence, and its traceback goes to the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            _log.exception("the admin API failed on %s %s", scope["method"], scope["path"])
            if begun:
                raise  # half an answer is out: closing the connection is the only honest end
            message = "the server failed on this request, which is a defect of it; its log has the details"
            await refusal(500, "internal-error", message)(scope, receive, send)
