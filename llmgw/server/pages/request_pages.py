"""/admin/requests: the last requests, what became of each, and why it failed or was tried again."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.messages.recent_views import RequestView
from llmgw.server.admin import border
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.admin.recent import FAILED, FILTERS, wanted
from llmgw.server.own_key import PLAYGROUND
from llmgw.server.pages.addresses import replica_url
from llmgw.server.pages.changes import SAID
from llmgw.server.pages.handlers import as_page
from llmgw.server.pages.rendering import page

SHOWN_MAX = 50
STATUSES = {
    "": "any",
    FAILED: "failed (all but 2xx)",
    "2xx": "2xx: answered",
    "4xx": "4xx: refused",
    "499": "499: the client left",
    "429": "429: over a limit",
    "5xx": "5xx: no answer",
    "503": "503: nothing free or ready",
}
_CLIENT_LEFT = 499
_INT_MAX = 2**62


def request_routes(backend: AdminBackend) -> list[Route]:
    """The list, with filters in its address."""

    async def requests(request: Request) -> Response:
        border.only_parameters(request, SAID, *FILTERS, "before")
        before = border.whole_number(request, "before", None, 1, _INT_MAX)
        # A form sends its empty fields too.
        asked = {name: value for name in FILTERS if (value := request.query_params.get(name, "").strip())}
        found = backend.recent.requests(before=before, limit=SHOWN_MAX + 1, fits=wanted(asked, backend))
        older = found[SHOWN_MAX - 1].id if len(found) > SHOWN_MAX else None
        status = asked.get("status", "")
        return page(
            request,
            "requests.html",
            rows=[(view, sign(view), why(view), links(view)) for view in found[:SHOWN_MAX]],
            asked=asked,
            chosen={name: asked.get(name, "") for name in FILTERS},
            models=[model.name for model in backend.models()],
            keys=[*([PLAYGROUND] if backend.playground.needs_key else []), *sorted(_key_names(backend))],
            statuses=STATUSES if status in STATUSES else {**STATUSES, status: status},
            older=None if older is None else address("/admin/requests", {**asked, "before": str(older)}),
            newest=None if before is None else address("/admin/requests", asked),
            api=address("/api/v1/requests", asked if before is None else {**asked, "before": str(before)}),
        )

    return [Route("/admin/requests", as_page(requests), methods=["GET"])]


def sign(view: RequestView) -> tuple[str, str]:
    """(class, sign and word) of how it ended: the colour says the same as these."""
    if view.status == _CLIENT_LEFT:
        return "quiet", "◌ client left"
    if view.status >= 500:
        return "bad", f"✕ {_phrase(view.status)}"
    if view.status >= 400:
        return "warn", f"▲ {_phrase(view.status)}"
    if view.retries:
        return "good", "↻ tried again"
    return "good", "● answered"


def why(view: RequestView) -> str:
    """Why it failed or was tried again, in one line; empty when there is nothing to say."""
    parts = []
    if view.passed_on:
        parts.append(f"{view.endpoint} itself answered {view.status}: its output may say why.")
    elif view.error and view.status != _CLIENT_LEFT:
        parts.append(view.error)
    if view.retried_because:
        parts.append(f"Tried again since {view.retried_because}.")
    if view.retry_refused:
        parts.append("Another engine was not asked: the model's retry budget was spent.")
    return " ".join(parts)


def links(view: RequestView) -> dict[str, str]:
    """Word → address of where else this request can be seen."""
    if view.endpoint is None or view.endpoint.startswith("static:"):
        return {}
    return {
        "logs": f"{replica_url(view.endpoint)}/logs",
        "history": address("/admin/history", {"subject": view.endpoint}),
    }


def address(path: str, query: Mapping[str, str]) -> str:
    """A path with a query, if there is any."""
    return f"{path}?{urlencode(query, errors='replace')}" if query else path


def _key_names(backend: AdminBackend) -> set[str]:
    return {view.name for view in backend.keys.views()}


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase.lower()
    except ValueError:
        return "failed"
