"""The routes of bandwidth tests: started, followed, ended, and what is kept of them."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.messages.fabric_test_views import FABRIC_TEST_WAIT_S_MAX, StartFabricTest
from llmgw.server.admin import border
from llmgw.server.admin.answers import answer
from llmgw.server.admin.backend import AdminBackend

KEPT_LIMIT_MAX = 20_000
_COUNT_MAX = 2**31
_TEST = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


class FabricTestRoutes:
    """`/api/v1/fabric-tests` over one backend."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    def routes(self, api: str) -> list[Route]:
        """The routes below this path."""
        one = f"{api}/fabric-tests/{{test}}"
        return [
            Route(f"{api}/fabric-tests", self.kept, methods=["GET"]),
            Route(f"{api}/fabric-tests", self.start, methods=["POST"]),
            Route(one, self.view, methods=["GET"]),
            Route(one, self.end, methods=["DELETE"]),
        ]

    async def kept(self, request: Request) -> Response:
        border.only_parameters(request, "fabric", "node", "limit")
        fabric, node = request.query_params.get("fabric"), request.query_params.get("node")
        limit = border.whole_number(request, "limit", 100, 1, KEPT_LIMIT_MAX)
        assert limit is not None
        return answer(
            self._backend.fabric_tests.kept(
                fabric=None if fabric is None else border.plain_name(fabric, "fabric"),
                node=None if node is None else border.as_node_id(node),
                limit=limit,
            )
        )

    async def start(self, request: Request) -> Response:
        border.only_parameters(request)
        wish = await border.body_as(request, StartFabricTest)
        for node in wish.nodes:
            border.as_node_id(node)
        if wish.fabric is not None:
            border.plain_name(wish.fabric, "fabric")
        return answer(await self._backend.fabric_tests.start(wish, by=request.state.by), status=201)

    async def view(self, request: Request) -> Response:
        border.only_parameters(request, "after", "seen", "wait")
        after = border.whole_number(request, "after", 0, 0, _COUNT_MAX)
        wait_s = border.whole_number(request, "wait", 0, 0, FABRIC_TEST_WAIT_S_MAX)
        assert after is not None
        assert wait_s is not None
        seen = border.whole_number(request, "seen", None, 0, _COUNT_MAX)
        tests = self._backend.fabric_tests
        return answer(await tests.view(_test_id(request), after=after, seen=seen, wait_s=wait_s))

    async def end(self, request: Request) -> Response:
        border.only_parameters(request)
        test_id = _test_id(request)
        await border.no_body(request)
        return answer(await self._backend.fabric_tests.end(test_id, by=request.state.by))


def _test_id(request: Request) -> str:
    value: str = request.path_params["test"]
    if not _TEST.fullmatch(value):
        raise border.bad_request(
            f"{value[:80]!r} is not the id of a test: letters, digits, '-' and '_', at most 64"
        )
    return value
