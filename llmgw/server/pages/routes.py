"""The admin pages' addresses. Every page says what its API says, and links it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from llmgw.server.admin.auth import TokenCheck
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.pages.assets import PREFIX, serve_asset
from llmgw.server.pages.audit_page import audit_routes
from llmgw.server.pages.events import EventLimits, Events
from llmgw.server.pages.fabric_pages import fabric_routes
from llmgw.server.pages.handlers import as_page
from llmgw.server.pages.history_pages import history_routes
from llmgw.server.pages.login import Login
from llmgw.server.pages.model_pages import model_routes
from llmgw.server.pages.node_pages import node_routes
from llmgw.server.pages.overview import overview_routes
from llmgw.server.pages.playground_page import playground_routes
from llmgw.server.pages.rendering import PAGE_HEADERS, PAGES, error_page
from llmgw.server.pages.replica_pages import replica_routes
from llmgw.server.pages.request_pages import request_routes
from llmgw.server.pages.sessions import BrowserSessions
from llmgw.server.pages.still_may import still_may
from llmgw.server.pages.usage_page import usage_routes


def page_routes(
    backend: AdminBackend,
    sessions: BrowserSessions,
    check: TokenCheck,
    *,
    secure: bool,
    event_limits: EventLimits | None = None,
) -> list[Route]:
    """All of them; `Guard` stands before them as it does before the API."""
    login = Login(backend, sessions, check, secure=secure)
    alive = still_may(backend, sessions, secure=secure)
    events = Events(backend, alive, limits=event_limits)
    return [
        Route("/", _to_admin, methods=["GET"]),
        Route(f"{PREFIX}/{{version}}/{{name:path}}", serve_asset, methods=["GET"]),
        Route("/admin/login", as_page(login.show), methods=["GET"]),
        Route("/admin/login", as_page(login.log_in), methods=["POST"]),
        Route("/admin/logout", as_page(login.log_out), methods=["POST"]),
        Route("/admin/models/", as_page(_nothing), methods=["GET"]),
        *events.routes(),
        *overview_routes(backend),
        *node_routes(backend),
        *fabric_routes(backend),
        *audit_routes(backend),
        *model_routes(backend),
        *replica_routes(backend),
        *history_routes(backend),
        *request_routes(backend),
        *usage_routes(backend),
        *playground_routes(backend, alive),
        Route("/admin/{rest:path}", as_page(_nothing), methods=["GET"]),
    ]


async def _to_admin(request: Request) -> Response:
    return RedirectResponse("/admin", 303, PAGE_HEADERS)


async def _nothing(request: Request) -> Response:
    address = request.url.path.rstrip("/")
    if address != request.url.path and address in ("/admin/models", *dict(PAGES)):
        # As people type it.
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{address}{query}", 303, PAGE_HEADERS)
    return error_page(request, 404, f"There is no page {request.url.path}.")
