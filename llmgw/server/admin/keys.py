"""The routes of API keys: who may use the model API, and how much of it."""

from __future__ import annotations

import math

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.messages.admin_keys import CreateKey, LimitKey
from llmgw.server.admin import border
from llmgw.server.admin.answers import answer
from llmgw.server.admin.backend import AdminBackend

RATE_MAX = 10**12
CONCURRENCY_MAX = 10**6
PRIORITY_MAX = 100
MODELS_MAX = 1000
EXPIRES_AT_MAX = 10**11


class KeyRoutes:
    """Routes over one backend."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    def routes(self, api: str) -> list[Route]:
        """All of them, below `api`."""
        return [
            Route(f"{api}/keys", self._views, methods=["GET"]),
            Route(f"{api}/keys", self._create, methods=["POST"]),
            Route(f"{api}/keys/{{name}}", self._revoke, methods=["DELETE"]),
            Route(f"{api}/keys/{{name}}/limit", self._limit, methods=["POST"]),
        ]

    async def _views(self, request: Request) -> Response:
        border.only_parameters(request)
        return answer(self._backend.keys.views())

    async def _create(self, request: Request) -> Response:
        border.only_parameters(request)
        wish = await border.body_as(request, CreateKey)
        border.key_name(wish.name)
        _check(wish)
        return answer(await self._backend.keys.create(wish, by=request.state.by), status=201)

    async def _limit(self, request: Request) -> Response:
        border.only_parameters(request)
        name = border.key_name(request.path_params["name"])
        wish = await border.body_as(request, LimitKey)
        _check(wish)
        return answer(await self._backend.keys.limit(name, wish, by=request.state.by))

    async def _revoke(self, request: Request) -> Response:
        border.only_parameters(request)
        name = border.key_name(request.path_params["name"])
        await border.no_body(request)
        return answer(await self._backend.keys.revoke(name, by=request.state.by))


def _check(wish: CreateKey | LimitKey) -> None:
    """Numbers and names in their bounds; what is not given, or null, always is. Raises AdminError(400)."""
    for field, low, high in (
        ("requests_per_minute", 1, RATE_MAX),
        ("tokens_per_minute", 1, RATE_MAX),
        ("concurrency", 1, CONCURRENCY_MAX),
        ("priority", -PRIORITY_MAX, PRIORITY_MAX),
    ):
        value = getattr(wish, field)
        if isinstance(value, int) and not low <= value <= high:
            hint = "; llmgw ctl keys revoke ends a key" if value == 0 else ""
            raise border.bad_request(f"{field} must be a whole number from {low} to {high}, not {value}{hint}")
    if isinstance(wish.models, list):
        if not wish.models or len(wish.models) > MODELS_MAX:
            raise border.bad_request(f"models must name 1 to {MODELS_MAX}; null allows all")
        for name in wish.models:
            border.plain_name(name, "model")
    at = wish.expires_at
    if isinstance(at, float) and not (math.isfinite(at) and 0 < at <= EXPIRES_AT_MAX):
        raise border.bad_request("expires_at must be seconds since 1970")
