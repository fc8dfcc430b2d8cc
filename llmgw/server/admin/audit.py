"""The admin API's question for the audit log: who asked for what, and how it ended."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.server.admin import border
from llmgw.server.admin.answers import answer
from llmgw.server.admin.backend import AdminBackend

AUDIT_LIMIT_MAX = 1000
_INT_MAX = 2**62


class AuditRoutes:
    """One GET route over one backend."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    def routes(self, api: str) -> list[Route]:
        """Below the prefix `api`."""
        return [Route(f"{api}/audit", self._entries, methods=["GET"])]

    async def _entries(self, request: Request) -> Response:
        border.only_parameters(request, "by", "subject", "from", "to", "before", "limit")
        limit = border.whole_number(request, "limit", 100, 1, AUDIT_LIMIT_MAX)
        assert limit is not None
        return answer(await self._backend.audit.view(**asked_for(request), limit=limit))


def asked_for(request: Request) -> dict[str, Any]:
    """What a query's `by`, `subject`, `from`, `to` and `before` ask of `AdminAudit.view`.

    One that is empty, as forms of pages send it, asks for nothing. Raises AdminError(400).
    """
    query = {name: value for name, value in request.query_params.items() if value}
    times = {name: border.moment(query[name], name) for name in ("from", "to") if name in query}
    if "from" in times and "to" in times and times["from"] >= times["to"]:
        raise border.bad_request("from must be before to")
    return {
        "by": border.plain_name(query["by"], "by") if "by" in query else None,
        "subject": border.plain_name(query["subject"], "subject") if "subject" in query else None,
        "from_s": times.get("from"),
        "to_s": times.get("to"),
        "before": border.whole_number(request, "before", None, 1, _INT_MAX) if "before" in query else None,
    }
