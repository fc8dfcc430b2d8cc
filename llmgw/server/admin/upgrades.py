"""The routes of upgrades: a release's file is sent, a roll started, followed and cancelled."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.messages.upgrade_views import UPGRADE_WAIT_S_MAX, StartUpgrade
from llmgw.server.admin import border
from llmgw.server.admin.answers import answer
from llmgw.server.admin.backend import AdminBackend, AdminError

_COUNT_MAX = 2**31
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_BODY_BYTES_MAX = 1024 * 1024
LAST = "last"


class UpgradeRoutes:
    """`/api/v1/upgrades` and `/api/v1/releases` over one backend."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    def routes(self, api: str) -> list[Route]:
        """The routes below this path."""
        one = f"{api}/upgrades/{{upgrade}}"
        return [
            Route(f"{api}/releases/{{sha256}}", self.receive, methods=["PUT"]),
            Route(f"{api}/upgrades", self.start, methods=["POST"]),
            Route(one, self.view, methods=["GET"]),
            Route(one, self.cancel, methods=["DELETE"]),
        ]

    async def receive(self, request: Request) -> Response:
        border.only_parameters(request)
        sha256: str = request.path_params["sha256"]
        if not _SHA256.fullmatch(sha256):
            raise border.bad_request(f"{sha256[:80]!r} is no SHA-256 in lower-case hex")
        return answer(await self._backend.upgrades.receive(sha256, _chunks(request)))

    async def start(self, request: Request) -> Response:
        border.only_parameters(request)
        wish = await border.body_as(request, StartUpgrade, bytes_max=_BODY_BYTES_MAX)
        for node in wish.nodes:
            border.as_node_id(node)
        return answer(await self._backend.upgrades.start(wish, by=request.state.by), status=201)

    async def view(self, request: Request) -> Response:
        border.only_parameters(request, "seen", "wait")
        seen = border.whole_number(request, "seen", None, 0, _COUNT_MAX)
        wait_s = border.whole_number(request, "wait", 0, 0, UPGRADE_WAIT_S_MAX)
        assert wait_s is not None
        return answer(await self._backend.upgrades.view(_upgrade(request), seen=seen, wait_s=wait_s))

    async def cancel(self, request: Request) -> Response:
        border.only_parameters(request)
        upgrade = _upgrade(request)
        await border.no_body(request)
        return answer(await self._backend.upgrades.cancel(upgrade, by=request.state.by))


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            if chunk:
                yield chunk
    except ClientDisconnect:
        raise AdminError(
            400, "client-left", "the client closed the connection before the file had come"
        ) from None


def _upgrade(request: Request) -> str | None:
    """The id, or None for `last`."""
    value: str = request.path_params["upgrade"]
    if not _ID.fullmatch(value):
        raise border.bad_request(f"{value[:80]!r} is not the id of an upgrade")
    return None if value == LAST else value
