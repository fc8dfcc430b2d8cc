"""/admin/fabrics: the fabrics, and the drawing of each."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.server.admin import border
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.pages.changes import SAID
from llmgw.server.pages.handlers import as_page
from llmgw.server.pages.rendering import PAGE_HEADERS, page


def fabric_routes(backend: AdminBackend) -> list[Route]:
    """The list, the drawing, and the still drawing for browsers without scripts."""

    async def fabrics(request: Request) -> Response:
        border.only_parameters(request, SAID)
        return page(request, "fabrics.html", fabrics=await backend.drawings.overview())

    async def fabric(request: Request) -> Response:
        border.only_parameters(request, SAID)
        name = border.plain_name(request.path_params["fabric"], "fabric")
        view = await backend.drawings.live(name)
        return page(request, "fabric.html", live=view.live)

    async def svg(request: Request) -> Response:
        border.only_parameters(request)
        name = border.plain_name(request.path_params["fabric"], "fabric")
        # Opened by itself it is a document: with nothing but its own styles in it.
        policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
        headers = {**PAGE_HEADERS, "content-security-policy": policy}
        return Response(await backend.drawings.svg(name), headers=headers, media_type="image/svg+xml")

    return [
        Route("/admin/fabrics", as_page(fabrics), methods=["GET"]),
        Route("/admin/fabrics/{fabric}.svg", as_page(svg), methods=["GET"]),
        Route("/admin/fabrics/{fabric}", as_page(fabric), methods=["GET"]),
    ]
