"""How a page is made: a template with everything in it escaped, and headers that let a browser do little."""

from __future__ import annotations

import datetime
import functools
from typing import Any

import jinja2
from starlette.requests import Request
from starlette.responses import Response

import llmgw
from llmgw.server.pages.assets import asset_url
from llmgw.server.pages.numbers import FILTERS

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


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llmgw.server.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(asset=asset_url, version=llmgw.__version__)
    environment.filters.update(FILTERS, utc=utc, iso=iso)
    return environment


def page(request: Request, template: str, status: int = 200, **facts: Any) -> Response:
    """A page as an answer. Templates know `session` (None before login), `path`, `done` (what a change just did)
    and their own facts."""
    session = getattr(request.state, "session", None)
    facts = {"session": session, "path": request.url.path, "done": None, **facts}
    if session is not None:
        facts["done"] = session.said.get(request.query_params.get("said", ""))
    text = _environment().get_template(template).render(facts)
    return Response(text, status, PAGE_HEADERS, media_type="text/html; charset=utf-8")


def error_page(request: Request, status: int, message: str) -> Response:
    """A refusal as a page: what happened, and the way back."""
    return page(request, "error.html", status, message=message, code=status)


def utc(at: float) -> str:
    """Seconds since the epoch → `2026-08-06 16:11:23 UTC`."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(at: float) -> str:
    """For `<time datetime>`."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
