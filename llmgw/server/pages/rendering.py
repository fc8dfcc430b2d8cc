"""How a page is made: a template with everything in it escaped, and headers that let a browser do little."""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jinja2
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import llmgw
from llmgw.server.admin.answers import GZIP_BYTES_MIN, GZIP_LEVEL, takes_gzip
from llmgw.server.pages.addresses import LINKS
from llmgw.server.pages.assets import asset_url
from llmgw.server.pages.numbers import FILTERS
from llmgw.server.pages.plain_text import plain_line
from llmgw.server.pages.readable import as_path, readable
from llmgw.server.pages.sayings import pieces
from llmgw.server.pages.times import ago, iso, utc, without_now

PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""`referrer-policy` is not `no-referrer`: a form's `Origin` would be `null` with it, and tell nothing."""

PAGES = (
    ("/admin", "Overview"),
    ("/admin/nodes", "Nodes"),
    ("/admin/fabrics", "Fabrics"),
    ("/admin/requests", "Requests"),
    ("/admin/usage", "Usage"),
    ("/admin/playground", "Playground"),
    ("/admin/history", "History"),
    ("/admin/audit", "Audit"),
)
"""What the bar of every page leads to; models are reached from the overview."""

_threads = ThreadPoolExecutor(2, "pages")
"""A page of 400 nodes takes a good part of a second, in which agents and operators are answered too."""


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llmgw.server.pages"),
        autoescape=True,
        finalize=readable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(asset=asset_url, nav_pages=PAGES, version=llmgw.__version__)
    environment.filters.update(FILTERS, **LINKS, plain_line=plain_line)
    environment.filters.update(utc=utc, iso=iso, ago=ago, pieces=pieces, urlencode=as_path)
    return environment


class Page(Response):
    """A page that is rendered when it is sent: compressed where that is taken, and not at all where the asker has
    the same already (`If-None-Match`)."""

    def __init__(self, template: str, status: int, facts: dict[str, Any]) -> None:
        super().__init__(None, status, {**PAGE_HEADERS, "vary": "accept-encoding"}, "text/html; charset=utf-8")
        self._template = template
        self._facts = facts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Headers(scope=scope)
        loop = asyncio.get_running_loop()
        etag, body, squeezed = await loop.run_in_executor(_threads, self._render, takes_gzip(asked))
        if self.status_code == 200:
            self.headers["etag"] = etag
            if etag in [each.strip() for each in asked.get("if-none-match", "").split(",")]:
                self.status_code, body, squeezed = 304, b"", False
        if squeezed:
            # A page holds its session's `csrf`, and compression tells by lengths whether something is in it twice
            # (BREACH). Whoever could ask with chosen words from elsewhere has no session: the cookie is strict.
            self.headers["content-encoding"] = "gzip"
        self.body = body
        if self.status_code == 304:
            del self.headers["content-length"]
        else:
            self.headers["content-length"] = str(len(body))
        await super().__call__(scope, receive, send)

    def _render(self, gzipped: bool) -> tuple[str, bytes, bool]:
        text = _environment().get_template(self._template).render(self._facts)
        # Weak: the same in what it says, whatever it was compressed with.
        etag = f'W/"{hashlib.sha256(without_now(text).encode()).hexdigest()[:24]}"'
        body = text.encode()
        squeezed = gzipped and len(body) >= GZIP_BYTES_MIN
        return etag, gzip.compress(body, GZIP_LEVEL) if squeezed else body, squeezed


def page(request: Request, template: str, status: int = 200, **facts: Any) -> Response:
    """A page as an answer. Templates know `session` (None before login), `path`, `now` (seconds since the epoch),
    `news` (the version of `News` that they are of), `done` (what a change just did) and their own facts, which
    nobody may change any more."""
    session = getattr(request.state, "session", None)
    own = {
        "session": session,
        "path": request.url.path,
        "now": time.time(),
        "news": getattr(request.state, "news", ""),
        "done": None,
    }
    facts = {**own, **facts}
    if session is not None:
        facts["done"] = session.said.get(request.query_params.get("said", ""))
    return Page(template, status, facts)


def error_page(request: Request, status: int, message: str) -> Response:
    """A refusal as a page: what happened, and the way back."""
    request.state.sentence = message  # for the audit log
    return page(request, "error.html", status, message=message, code=status)


def sentence(message: str) -> str:
    """The API's words as a sentence on a page."""
    return f"{message[:1].upper()}{message[1:].rstrip('.')}."
