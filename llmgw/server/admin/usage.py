"""The admin API's question for usage: what keys and models took, by day or hour."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

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
_SECONDS_MAX = 2**40
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2})?Z?)?")


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
        end = _time(query["to"], "to") if "to" in query else int(time.time()) + 1
        to_s = -(-end // HOUR_S) * HOUR_S
        start = _time(query["from"], "from") if "from" in query else to_s - DEFAULT_SPAN_S
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


def _time(text: str, name: str) -> int:
    """Seconds since 1970, or a date and time of UTC. Raises AdminError(400)."""
    if text.isascii() and text.isdigit() and len(text) < 16 and int(text) < _SECONDS_MAX:
        return int(text)
    if _DATE.fullmatch(text):
        try:
            return int(datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC).timestamp())
        except (ValueError, OverflowError):
            pass
    raise border.bad_request(
        f"{name} must be a time like 2026-11-29 or 2026-11-29T13:00 (UTC), or seconds since 1970; "
        f"it is {text[:40]!r}"
    )
