"""/admin/history: what happened, the newest first, paged by key however long it is."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.messages.admin import HISTORY_KINDS
from llmgw.server.admin import border
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.admin.names import model_name
from llmgw.server.pages.changes import SAID
from llmgw.server.pages.handlers import as_page
from llmgw.server.pages.rendering import page

ENTRIES_SHOWN = 100
_ID_MAX = 2**62


def history_routes(backend: AdminBackend) -> list[Route]:
    """The page, narrowed by a form that leaves its fields empty for all."""

    async def history(request: Request) -> Response:
        border.only_parameters(request, SAID, "kind", "subject", "model", "before")
        asked = {name: request.query_params.get(name, "").strip() for name in ("kind", "subject", "model")}
        if asked["kind"] and asked["kind"] not in HISTORY_KINDS:
            kinds = ", ".join(HISTORY_KINDS)
            raise border.bad_request(f"there is no kind {asked['kind'][:40]!r}; known: {kinds}")
        before = border.whole_number(request, "before", None, 1, _ID_MAX)
        entries = await backend.history(
            subject=border.plain_name(asked["subject"], "subject") if asked["subject"] else None,
            kind=asked["kind"] or None,
            model=model_name(backend, asked["model"]) if asked["model"] else None,
            before=before,
            # One more than is shown says whether there are older ones.
            limit=ENTRIES_SHOWN + 1,
        )
        shown = entries[:ENTRIES_SHOWN]
        narrowed = {name: value for name, value in asked.items() if value}
        older = _address(narrowed, shown[-1].id) if len(entries) > ENTRIES_SHOWN else None
        return page(
            request,
            "history.html",
            asked=asked,
            narrowed=bool(narrowed),
            kinds=HISTORY_KINDS,
            entries=shown,
            before=before,
            older=older,
            newest=_address(narrowed, None),
            api=_address(narrowed, before, "/api/v1/history"),
        )

    return [Route("/admin/history", as_page(history), methods=["GET"])]


def _address(narrowed: dict[str, str], before: int | None, path: str = "/admin/history") -> str:
    query = urlencode(narrowed if before is None else {**narrowed, "before": before})
    return f"{path}?{query}" if query else path
