"""/admin: what is wrong, and the way to everything else."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.server.admin import border
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.pages.changes import SAID
from llmgw.server.pages.handlers import as_page
from llmgw.server.pages.rendering import page

SEVERITIES = ("error", "warning", "info")


def overview_routes(backend: AdminBackend) -> list[Route]:
    """The page of the whole fleet."""

    async def home(request: Request) -> Response:
        border.only_parameters(request, SAID)
        # Those of nodes are among them.
        found = sorted(backend.server().problems, key=lambda finding: SEVERITIES.index(finding.severity))
        fabrics = await backend.drawings.overview()
        return page(
            request,
            "home.html",
            server=backend.server(),
            findings=found,
            fabrics=fabrics,
            # A finding of a fabric says where it is in the words of `label`.
            pages_of={", ".join(fabric.names) or fabric.id: fabric.id for fabric in fabrics},
            nodes=backend.nodes(),
            replicas=backend.replicas(),
        )

    return [Route("/admin", as_page(home), methods=["GET"])]
