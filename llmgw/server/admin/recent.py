"""The routes of what requests did lately: the newest of them, and rates of the last hour."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.messages.recent_views import RequestView
from llmgw.server.admin import border
from llmgw.server.admin.answers import answer, not_found
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.admin.names import model_name

REQUESTS_MAX = 1000
FAILED = "failed"
FILTERS = ("model", "key", "endpoint", "status", "id")
"""What requests can be asked for by."""
_FIELDS = {"id": "request_id"}
_INT_MAX = 2**62


class RecentRoutes:
    """Routes over one backend."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    def routes(self, api: str) -> list[Route]:
        """All of them, below `api`."""
        return [
            Route(f"{api}/rates", self._rates, methods=["GET"]),
            Route(f"{api}/rates/series", self._series, methods=["GET"]),
            Route(f"{api}/requests", self._requests, methods=["GET"]),
        ]

    async def _rates(self, request: Request) -> Response:
        border.only_parameters(request)
        return answer(self._backend.recent.rates())

    async def _series(self, request: Request) -> Response:
        border.only_parameters(request, "model")
        asked = request.query_params.get("model")
        if asked is None:
            raise border.bad_request("a series is of a model: /api/v1/rates/series?model=NAME")
        name = model_name(self._backend, asked)
        known = [model.name for model in self._backend.models()]
        if name not in known:
            raise not_found("model", name, known)
        return answer(self._backend.recent.series(name))

    async def _requests(self, request: Request) -> Response:
        border.only_parameters(request, *FILTERS, "before", "limit")
        limit = border.whole_number(request, "limit", 100, 1, REQUESTS_MAX)
        assert limit is not None
        before = border.whole_number(request, "before", None, 1, _INT_MAX)
        return answer(
            self._backend.recent.requests(
                before=before, limit=limit, fits=wanted(request.query_params, self._backend)
            )
        )


def wanted(query: Mapping[str, str], backend: AdminBackend) -> Callable[[RequestView], bool]:
    """Which requests a query's `FILTERS` ask for: `status` is like `4xx`, `503` or `failed`, and `id` is what the
    client knows a request by.

    Raises AdminError(400)."""
    model, status = query.get("model"), query.get("status")
    names = {
        _FIELDS.get(name, name): border.plain_name(query[name], name)
        for name in ("key", "endpoint", "id")
        if query.get(name)
    }
    if model is not None:
        names["model"] = model_name(backend, model)
    if status is not None and not _is_status(status):
        raise border.bad_request(f"status must be like 503, 5xx or {FAILED} (all but 2xx), not {status[:40]!r}")

    def fits(view: RequestView) -> bool:
        return all(getattr(view, name) == value for name, value in names.items()) and _has_status(view, status)

    return fits


def _is_status(text: str) -> bool:
    digits = text[:1] if text[1:] == "xx" else text
    return text == FAILED or (digits.isascii() and digits.isdigit() and len(text) == 3)


def _has_status(view: RequestView, status: str | None) -> bool:
    if status is None:
        return True
    if status == FAILED:
        return not 200 <= view.status < 300
    return str(view.status).startswith(status.removesuffix("xx"))
