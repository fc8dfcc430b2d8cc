"""/admin: what is wrong, what goes on, what serves, and the way to everything else."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.messages.upgrade_views import UpgradeView
from llmgw.server.admin import border
from llmgw.server.admin.backend import AdminBackend, AdminError
from llmgw.server.pages.changes import SAID
from llmgw.server.pages.gpu_tiles import TILES_MAX, node_tile
from llmgw.server.pages.handlers import as_page
from llmgw.server.pages.model_rows import model_rows
from llmgw.server.pages.node_facts import with_findings
from llmgw.server.pages.places import Places
from llmgw.server.pages.problems import count_severities, group_problems
from llmgw.server.pages.rendering import page
from llmgw.server.pages.under_way import under_way


def overview_routes(backend: AdminBackend) -> list[Route]:
    """The page of the whole fleet."""

    async def home(request: Request) -> Response:
        border.only_parameters(request, SAID)
        server, replicas, models = backend.server(), backend.replicas(), backend.models()
        nodes = with_findings(backend.nodes(), server.problems)
        fabrics = await backend.drawings.overview()
        rates = backend.recent.rates()
        places = Places.of(nodes, replicas, models, fabrics)
        return page(
            request,
            "home.html",
            server=server,
            # Those of nodes are among them.
            problems=group_problems(server.problems, places),
            counts=count_severities(server.problems),
            doing=under_way(settling=server.settling, nodes=nodes, upgrade=await _last_upgrade(backend)),
            models=model_rows(models, rates),
            window_s=rates[0].window_s if rates else None,
            tiles=[node_tile(node) for node in nodes[:TILES_MAX]],
            nodes=nodes,
            gpus=sum(len(node.gpus) for node in nodes),
            gpus_used=sum(len(node.gpus_in_use) for node in nodes),
            replicas=replicas,
            fabrics=fabrics,
        )

    return [Route("/admin", as_page(home), methods=["GET"])]


async def _last_upgrade(backend: AdminBackend) -> UpgradeView | None:
    try:
        return await backend.upgrades.view(None, seen=None, wait_s=0.0)
    except AdminError as error:
        if error.status != 404:
            raise
        return None
