"""The admin API's question for usage: what keys and models took, by day or hour."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.messages.usage_views import USAGE_BY
from llmgw.server.admin import border
from llmgw.server.admin.answers import answer
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.admin.names import model_name

HOUR_S = 3600
DEFAULT_SPAN_S = 7 * 86_400


class UsageRoutes:
    """One GET route over one backend."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    def routes(self, api: str) -> list[Route]:
        """Below the prefix `api`."""
        return [Route(f"{api}/usage", self.usage, methods=["GET"])]

    async def usage(self, request: Request) -> Response:
        border.only_parameters(request, "from", "to", "key", "model", "by")
        query = request.query_params
        # Hours are kept whole: one that has begun counts.
        end = border.moment(query["to"], "to") if "to" in query else int(time.time()) + 1
        to_s = -(-end // HOUR_S) * HOUR_S
        start = border.moment(query["from"], "from") if "from" in query else to_s - DEFAULT_SPAN_S
        from_s = start // HOUR_S * HOUR_S
        if from_s >= to_s:
            raise border.bad_request("from must be before to")
        key, model = query.get("key"), query.get("model")
        view = await self._backend.usage.view(
            from_s=from_s,
            to_s=to_s,
            key=border.plain_name(key, "key") if key else key,
            model=None if model is None else model_name(self._backend, model),
            by=_by(query.get("by", "model")),
        )
        return answer(view)


def _by(text: str) -> list[str]:
    words = [word for word in text.split(",") if word]
    for word in words:
        if word not in USAGE_BY:
            raise border.bad_request(
                f"usage is not kept by {word[:40]!r}; by takes {', '.join(USAGE_BY)}, or several with commas"
            )
    if len(set(words)) < len(words) or {"day", "hour"} <= set(words):
        raise border.bad_request("by names the same twice; give each of day or hour, key and model once")
    return sorted(words, key=USAGE_BY.index)
