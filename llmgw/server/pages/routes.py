"""The admin pages' addresses, and what each shows. Every page says what its API says, and links it."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from llmgw.server.admin import border
from llmgw.server.admin.auth import TokenCheck
from llmgw.server.admin.backend import AdminBackend, AdminError
from llmgw.server.pages.assets import PREFIX, serve_asset
from llmgw.server.pages.login import Login
from llmgw.server.pages.rendering import PAGE_HEADERS, error_page, page
from llmgw.server.pages.sessions import BrowserSessions
from llmgw.server.store.errors import StoreError

Handler = Callable[[Request], Awaitable[Response]]

SEVERITIES = ("error", "warning", "info")


class Pages:
    """The pages over one backend."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    async def home(self, request: Request) -> Response:
        """What is wrong, and the way to everything else."""
        border.only_parameters(request)
        # Those of nodes are among them.
        found = sorted(self._backend.server().problems, key=lambda finding: SEVERITIES.index(finding.severity))
        fabrics = await self._backend.drawings.overview()
        return page(
            request,
            "home.html",
            server=self._backend.server(),
            findings=found,
            fabrics=fabrics,
            # A finding of a fabric says where it is in the words of `label`.
            pages_of={", ".join(fabric.names) or fabric.id: fabric.id for fabric in fabrics},
            nodes=self._backend.nodes(),
            replicas=self._backend.replicas(),
        )

    async def fabrics(self, request: Request) -> Response:
        """Every fabric with its managers and its map."""
        border.only_parameters(request)
        return page(request, "fabrics.html", fabrics=await self._backend.drawings.overview())

    async def fabric(self, request: Request) -> Response:
        """The drawing of one."""
        border.only_parameters(request)
        name = border.plain_name(request.path_params["fabric"], "fabric")
        view = await self._backend.drawings.live(name)
        return page(request, "fabric.html", live=view.live)

    async def svg(self, request: Request) -> Response:
        """The map without a script."""
        border.only_parameters(request)
        name = border.plain_name(request.path_params["fabric"], "fabric")
        # Opened by itself it is a document: with nothing but its own styles in it.
        policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
        headers = {**PAGE_HEADERS, "content-security-policy": policy}
        return Response(await self._backend.drawings.svg(name), headers=headers, media_type="image/svg+xml")

    async def nothing(self, request: Request) -> Response:
        """No page has this address."""
        return error_page(request, 404, f"There is no page {request.url.path}.")


def page_routes(
    backend: AdminBackend, sessions: BrowserSessions, check: TokenCheck, *, secure: bool
) -> list[Route]:
    """All of them; `Guard` stands before them as it does before the API."""
    pages, login = Pages(backend), Login(backend, sessions, check, secure=secure)
    return [
        Route("/", _to_admin, methods=["GET"]),
        Route(f"{PREFIX}/{{version}}/{{name:path}}", serve_asset, methods=["GET"]),
        Route("/admin/login", _as_page(login.show), methods=["GET"]),
        Route("/admin/login", _as_page(login.log_in), methods=["POST"]),
        Route("/admin/logout", _as_page(login.log_out), methods=["POST"]),
        Route("/admin", _as_page(pages.home), methods=["GET"]),
        Route("/admin/fabrics", _as_page(pages.fabrics), methods=["GET"]),
        Route("/admin/fabrics/{fabric}.svg", _as_page(pages.svg), methods=["GET"]),
        Route("/admin/fabrics/{fabric}", _as_page(pages.fabric), methods=["GET"]),
        Route("/admin/{rest:path}", _as_page(pages.nothing), methods=["GET"]),
    ]


async def _to_admin(request: Request) -> Response:
    return RedirectResponse("/admin", 303, PAGE_HEADERS)


def _as_page(handler: Handler) -> Handler:
    """A refusal of the backend is a page here, not JSON."""

    @functools.wraps(handler)
    async def shown(request: Request) -> Response:
        try:
            return await handler(request)
        except AdminError as error:
            return error_page(request, error.status, sentence(error.message))
        except StoreError as error:
            return error_page(request, 503, sentence(str(error)))

    return shown


def sentence(message: str) -> str:
    """The API's words as a sentence on a page."""
    return f"{message[:1].upper()}{message[1:].rstrip('.')}."
