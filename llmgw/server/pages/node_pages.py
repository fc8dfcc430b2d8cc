"""/admin/nodes: the nodes, and each of them with everything that is known of it and what can be done to it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.messages.admin import HistoryEntry, NodeView
from llmgw.server.admin import border
from llmgw.server.admin.backend import AdminBackend, AdminError
from llmgw.server.pages.addresses import node_url
from llmgw.server.pages.changes import SAID, read_change, shown_again
from llmgw.server.pages.handlers import as_page
from llmgw.server.pages.node_facts import gpu_rows, port_rows, running_on, shared_facts, with_findings
from llmgw.server.pages.node_list import find_nodes
from llmgw.server.pages.node_words import node_badges
from llmgw.server.pages.places import Places
from llmgw.server.pages.problems import group_problems
from llmgw.server.pages.rendering import page
from llmgw.server.store.errors import StoreError

ROWS_MAX = 500
"""Of the list: a fleet of 400 nodes is one page, and of a larger one the filter finds the rest."""
HISTORY_ROWS = 10
NEARBY_MAX = 8
FORCE = "force"


def node_routes(backend: AdminBackend) -> list[Route]:
    """The list, the page of a node, and the four changes that it offers."""

    async def nodes(request: Request) -> Response:
        border.only_parameters(request, SAID, "q")
        asked = " ".join(request.query_params.get("q", "").split())
        if asked:
            border.plain_name(asked, "q")
        server = backend.server()
        known = with_findings(backend.nodes(), server.problems)
        found = find_nodes(known, asked)
        rows = [(node, node_badges(node)) for node in found[:ROWS_MAX]]
        return page(request, "nodes.html", q=asked, rows=rows, found=len(found), known=len(known), server=server)

    async def node(request: Request) -> Response:
        border.only_parameters(request, SAID)
        name = border.plain_name(request.path_params["node"], "node")
        views = backend.nodes()
        view = next((each for each in views if each.node_id == name), None)
        if view is None:
            return _unknown(request, name, views)
        server = backend.server()
        [view] = with_findings([view], server.problems)
        running = running_on(name, backend.replicas())
        history, history_problem = await _history(name)
        return page(
            request,
            "node.html",
            node=view,
            badges=node_badges(view),
            server=server,
            problems=group_problems(view.findings, Places.of([view], (), (), ())),
            shared=shared_facts(view.gpus),
            gpus=gpu_rows(view, running),
            ports=port_rows(view),
            running=running,
            history=history,
            history_problem=history_problem,
        )

    async def _history(name: str) -> tuple[list[HistoryEntry], str | None]:
        """The last of what happened to it. What cannot be read takes nothing else from the page."""
        try:
            found = await backend.history(subject=name, kind=None, model=None, before=None, limit=HISTORY_ROWS)
        except StoreError as error:
            return [], str(error)
        return found, None

    def _unknown(request: Request, name: str, views: Sequence[NodeView]) -> Response:
        known = sorted(view.node_id for view in views)
        nearby = difflib.get_close_matches(name, known, NEARBY_MAX, 0.5) or known[:NEARBY_MAX]
        try:
            removed_at = backend.node_removal(border.as_node_id(name)).removed_at
        except AdminError:
            removed_at = None  # no node could ever be called so
        facts = {"name": name, "known": len(known), "nearby": nearby, "removed_at": removed_at}
        return page(request, "node_unknown.html", 404, **facts)

    async def drain(request: Request) -> Response:
        form, name = await read_change(request), border.node_id(request)
        done = await backend.drain(name, force=form.get(FORCE) == "yes", by=request.state.by)
        return shown_again(request, node_url(name), done)

    async def undrain(request: Request) -> Response:
        await read_change(request)
        name = border.node_id(request)
        return shown_again(request, node_url(name), await backend.undrain(name, by=request.state.by))

    async def cordon(request: Request) -> Response:
        await read_change(request)
        name, cordoned = border.node_id(request), request.url.path.endswith("/cordon")
        return shown_again(request, node_url(name), await backend.cordon(name, cordoned, by=request.state.by))

    there = "/admin/nodes/{node}"
    return [
        Route("/admin/nodes", as_page(nodes), methods=["GET"]),
        Route(there, as_page(node), methods=["GET"]),
        Route(f"{there}/drain", as_page(drain), methods=["POST"]),
        Route(f"{there}/undrain", as_page(undrain), methods=["POST"]),
        Route(f"{there}/cordon", as_page(cordon), methods=["POST"]),
        Route(f"{there}/uncordon", as_page(cordon), methods=["POST"]),
    ]
