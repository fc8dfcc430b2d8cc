"""/admin/audit: who asked for which change, from where, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.server.admin import border
from llmgw.server.admin.audit import asked_for
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.pages.changes import SAID
from llmgw.server.pages.handlers import as_page
from llmgw.server.pages.rendering import page

PATH = "/admin/audit"
ENTRIES_SHOWN = 100
FILTERS = ("by", "subject", "from", "to")


def audit_routes(backend: AdminBackend) -> list[Route]:
    """The page, which a form filters and links page through."""

    async def audit(request: Request) -> Response:
        border.only_parameters(request, SAID, *FILTERS, "before")
        query = request.query_params
        entries = await backend.audit.view(**asked_for(request), limit=ENTRIES_SHOWN)
        chosen = {name: query[name] for name in FILTERS if query.get(name)}
        older = {**chosen, "before": entries[-1].id} if len(entries) == ENTRIES_SHOWN else None
        source = {**chosen, **({"before": query["before"]} if query.get("before") else {})}
        return page(
            request,
            "audit.html",
            entries=entries,
            chosen={name: chosen.get(name, "") for name in FILTERS},
            filtered=bool(chosen),
            names=sorted(token.name for token in await backend.tokens()),
            newest=_address(PATH, chosen) if query.get("before") else None,
            older=None if older is None else _address(PATH, older),
            source=_address("/api/v1/audit", source),
        )

    return [Route(PATH, as_page(audit), methods=["GET"])]


def _address(path: str, query: Mapping[str, object]) -> str:
    return f"{path}?{urlencode(query, errors='replace')}" if query else path
