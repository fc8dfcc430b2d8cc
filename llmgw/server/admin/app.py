"""The admin API and pages as an ASGI application: routes over an `AdminBackend`, tokens, JSON errors.

It knows the control plane only as that protocol. Its shapes are `llmgw/messages/admin.py`.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from llmgw.server.admin.answers import Answers, refuse_admin_error, refuse_http_error, refuse_store_error
from llmgw.server.admin.audit import AuditRoutes
from llmgw.server.admin.auth import Attempts, Guard, TokenCheck
from llmgw.server.admin.backend import AdminBackend, AdminError
from llmgw.server.admin.fabric_tests import FabricTestRoutes
from llmgw.server.admin.keys import KeyRoutes
from llmgw.server.admin.reads import Reads
from llmgw.server.admin.recent import RecentRoutes
from llmgw.server.admin.upgrades import UpgradeRoutes
from llmgw.server.admin.usage import UsageRoutes
from llmgw.server.admin.writes import Writes
from llmgw.server.audit.trail import Trail
from llmgw.server.pages.events import EventLimits
from llmgw.server.pages.remembered import remembered
from llmgw.server.pages.routes import page_routes
from llmgw.server.pages.sessions import BrowserSessions
from llmgw.server.store.errors import StoreError


def create_admin_app(
    backend: AdminBackend,
    *,
    secure: bool,
    attempts: Attempts | None = None,
    sessions: BrowserSessions | None = None,
    event_limits: EventLimits | None = None,
    views_s: float = 0.0,
) -> Starlette:
    """The application: the API and the pages.

    `secure` says whether its listener speaks TLS; when it does not, only loopback peers are answered, so that
    no token is accepted in the clear. `attempts` is the limit on wrong tokens, and `event_limits` those on
    streams to open pages; both have defaults. While nothing happens, pages may draw views that are `views_s` old.
    """
    reads, writes = Reads(backend), Writes(backend)
    check = TokenCheck(backend, attempts)
    sessions = BrowserSessions() if sessions is None else sessions
    api = "/api/v1"
    app = Starlette(
        routes=[
            Route("/health", reads.health, methods=["GET"]),
            Route("/metrics", reads.metrics, methods=["GET"]),
            Route(f"{api}/server", reads.server, methods=["GET"]),
            Route(f"{api}/nodes", reads.nodes, methods=["GET"]),
            Route(f"{api}/nodes/{{node}}", reads.node, methods=["GET"]),
            Route(f"{api}/nodes/{{node}}", writes.remove_node, methods=["DELETE"]),
            Route(f"{api}/nodes/{{node}}/removal", reads.node_removal, methods=["GET"]),
            Route(f"{api}/nodes/{{node}}/cordon", writes.cordon, methods=["POST"]),
            Route(f"{api}/nodes/{{node}}/uncordon", writes.uncordon, methods=["POST"]),
            Route(f"{api}/nodes/{{node}}/drain", writes.drain, methods=["POST"]),
            Route(f"{api}/nodes/{{node}}/undrain", writes.undrain, methods=["POST"]),
            Route(f"{api}/nodes/{{node}}/engine-check", writes.check_engine, methods=["POST"]),
            Route(f"{api}/replicas", reads.replicas, methods=["GET"]),
            Route(f"{api}/replicas/{{replica}}", reads.replica, methods=["GET"]),
            Route(f"{api}/replicas/{{replica}}/logs", reads.logs, methods=["GET"]),
            Route(f"{api}/replicas/{{replica}}/restart", writes.restart, methods=["POST"]),
            Route(f"{api}/fabrics", reads.fabrics, methods=["GET"]),
            *FabricTestRoutes(backend).routes(api),
            *UpgradeRoutes(backend).routes(api),
            Route(f"{api}/fabrics/{{fabric}}/changes", reads.fabric_changes, methods=["GET"]),
            Route(f"{api}/fabrics/{{fabric}}/map", reads.fabric_map, methods=["GET"]),
            Route(f"{api}/fabrics/{{fabric}}/accept", writes.accept_fabric, methods=["POST"]),
            Route(f"{api}/fabrics/{{fabric}}/topology", reads.topology, methods=["GET"]),
            Route(f"{api}/models", reads.models, methods=["GET"]),
            Route(f"{api}/weights", reads.weights, methods=["GET"]),
            Route(f"{api}/weights/remove", writes.remove_weights, methods=["POST"]),
            Route(f"{api}/explain", reads.explain, methods=["GET"]),
            Route(f"{api}/scale", writes.scale, methods=["POST"]),
            Route(f"{api}/catalog", reads.catalog, methods=["GET"]),
            Route(f"{api}/catalog", writes.apply_catalog, methods=["POST"]),
            Route(f"{api}/catalog/plan", writes.plan_catalog, methods=["POST"]),
            Route(f"{api}/catalog/revisions", reads.catalog_revisions, methods=["GET"]),
            Route(f"{api}/history", reads.history, methods=["GET"]),
            *UsageRoutes(backend).routes(api),
            *RecentRoutes(backend).routes(api),
            *KeyRoutes(backend).routes(api),
            *AuditRoutes(backend).routes(api),
            Route(f"{api}/tokens", reads.tokens, methods=["GET"]),
            Route(f"{api}/tokens", writes.create_token, methods=["POST"]),
            Route(f"{api}/tokens/{{name}}", writes.revoke_token, methods=["DELETE"]),
            *page_routes(remembered(backend, views_s), sessions, check, secure=secure, event_limits=event_limits),
        ],
        middleware=[
            Middleware(Answers),
            Middleware(Trail, audit=backend.audit),
            Middleware(Guard, backend=backend, secure=secure, check=check, sessions=sessions),
        ],
        exception_handlers={
            AdminError: refuse_admin_error,
            StoreError: refuse_store_error,
            HTTPException: refuse_http_error,
        },
    )
    # A redirect to the path with (or without) a slash would name an address made from the Host header.
    app.router.redirect_slashes = False
    return app
