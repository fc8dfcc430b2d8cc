"""The questions of the admin API: what there is, why, what happened, and what an engine said."""

from __future__ import annotations

import asyncio
import gzip

from starlette.requests import Request
from starlette.responses import Response

from llmgw.messages.admin import HISTORY_KINDS, Health
from llmgw.metrics.family import CONTENT_TYPE
from llmgw.server.admin import border
from llmgw.server.admin.answers import ALWAYS, answer, answer_small, not_found
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.admin.names import model_name

HISTORY_LIMIT_MAX = 1000
LOG_LINES_MAX = 10_000
RANK_MAX = 255
REVISION_MAX = 2**31
_INT_MAX = 2**62
GZIP_FROM_BYTES = 64 * 1024
"""Smaller texts travel as they are."""


class Reads:
    """The GET routes over one backend."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    async def health(self, request: Request) -> Response:
        return answer(Health())

    async def metrics(self, request: Request) -> Response:
        border.only_parameters(request)
        text = await self._backend.metrics()
        headers = {**ALWAYS, "content-type": CONTENT_TYPE, "vary": "accept-encoding"}
        if len(text) > GZIP_FROM_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
            text = await asyncio.to_thread(gzip.compress, text, 1)
            headers["content-encoding"] = "gzip"
        return Response(text, headers=headers)

    async def server(self, request: Request) -> Response:
        border.only_parameters(request)
        return answer(self._backend.server())

    async def nodes(self, request: Request) -> Response:
        border.only_parameters(request)
        return answer(self._backend.nodes())

    async def node(self, request: Request) -> Response:
        border.only_parameters(request)
        name = border.node_id(request)
        nodes = {node.node_id: node for node in self._backend.nodes()}
        if name not in nodes:
            raise not_found("node", name, list(nodes))
        return answer(nodes[name])

    async def node_removal(self, request: Request) -> Response:
        border.only_parameters(request)
        return answer(self._backend.node_removal(border.node_id(request)))

    async def replicas(self, request: Request) -> Response:
        border.only_parameters(request, "model")
        replicas = self._backend.replicas()
        if (model := request.query_params.get("model")) is not None:
            name = model_name(self._backend, model)
            replicas = [replica for replica in replicas if replica.model == name]
            known = [entry.name for entry in self._backend.models()]
            # A model that left the catalog may still have replicas that are stopping.
            if not replicas and name not in known:
                raise not_found("model", model, known)
        return answer(replicas)

    async def replica(self, request: Request) -> Response:
        border.only_parameters(request)
        name = border.replica_id(request)
        replicas = {replica.replica_id: replica for replica in self._backend.replicas()}
        if name not in replicas:
            raise not_found("replica", name, list(replicas))
        return answer(replicas[name])

    async def fabrics(self, request: Request) -> Response:
        border.only_parameters(request)
        return answer(await self._backend.fabrics.views())

    async def fabric_changes(self, request: Request) -> Response:
        border.only_parameters(request, "before", "limit")
        name = border.plain_name(request.path_params["fabric"], "fabric")
        limit = border.whole_number(request, "limit", 100, 1, HISTORY_LIMIT_MAX)
        assert limit is not None
        before = border.whole_number(request, "before", None, 1, _INT_MAX)
        return answer(await self._backend.fabrics.changes(name, before, limit))

    async def fabric_map(self, request: Request) -> Response:
        border.only_parameters(request)
        name = border.plain_name(request.path_params["fabric"], "fabric")
        return answer(await self._backend.fabrics.map(name))

    async def topology(self, request: Request) -> Response:
        border.only_parameters(request, "live")
        name = border.plain_name(request.path_params["fabric"], "fabric")
        if border.whole_number(request, "live", 0, 0, 1):
            return await answer_small(request, await self._backend.drawings.live(name))
        return await answer_small(request, await self._backend.drawings.topology(name))

    async def models(self, request: Request) -> Response:
        border.only_parameters(request)
        return answer(self._backend.models())

    async def weights(self, request: Request) -> Response:
        border.only_parameters(request, "node")
        node = request.query_params.get("node")
        return answer(await self._backend.weights.view(None if node is None else border.as_node_id(node)))

    async def explain(self, request: Request) -> Response:
        border.only_parameters(request, "model")
        model = request.query_params.get("model")
        if model is None:
            raise border.bad_request("explain needs a model: /api/v1/explain?model=NAME")
        return answer(self._backend.explain(model_name(self._backend, model)))

    async def history(self, request: Request) -> Response:
        border.only_parameters(request, "subject", "kind", "model", "before", "limit")
        query = request.query_params
        kind = query.get("kind")
        if kind is not None and kind not in HISTORY_KINDS:
            raise border.bad_request(f"there is no kind {kind[:40]!r}; known: {', '.join(HISTORY_KINDS)}")
        subject, model = query.get("subject"), query.get("model")
        limit = border.whole_number(request, "limit", 100, 1, HISTORY_LIMIT_MAX)
        assert limit is not None
        entries = await self._backend.history(
            subject=None if subject is None else border.plain_name(subject, "subject"),
            kind=kind,
            model=None if model is None else model_name(self._backend, model),
            before=border.whole_number(request, "before", None, 1, _INT_MAX),
            limit=limit,
        )
        return answer(entries)

    async def catalog(self, request: Request) -> Response:
        border.only_parameters(request, "revision")
        number = border.whole_number(request, "revision", None, 1, REVISION_MAX)
        return answer(await self._backend.catalog.view(number))

    async def catalog_revisions(self, request: Request) -> Response:
        border.only_parameters(request, "before", "limit")
        limit = border.whole_number(request, "limit", 100, 1, HISTORY_LIMIT_MAX)
        assert limit is not None
        before = border.whole_number(request, "before", None, 1, REVISION_MAX)
        return answer(await self._backend.catalog.revisions(before, limit))

    async def logs(self, request: Request) -> Response:
        border.only_parameters(request, "rank", "stream", "offset", "lines")
        replica = border.replica_id(request)
        rank = border.whole_number(request, "rank", 0, 0, RANK_MAX)
        lines = border.whole_number(request, "lines", 100, 1, LOG_LINES_MAX)
        assert rank is not None
        assert lines is not None
        stream = border.stream_name(request.query_params.get("stream", "engine"))
        offset = border.whole_number(request, "offset", None, 0, _INT_MAX)
        return answer(await self._backend.logs(replica, rank, stream, offset, lines))

    async def tokens(self, request: Request) -> Response:
        border.only_parameters(request)
        return answer(await self._backend.tokens())
