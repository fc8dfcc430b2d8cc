"""/admin/replicas/{id}: the way to a replica's model, its restart, and the log of each of its shards."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from llmgw.messages.admin import LogView, ReplicaView
from llmgw.server.admin import border
from llmgw.server.admin.backend import AdminBackend, AdminError
from llmgw.server.admin.reads import LOG_LINES_MAX, RANK_MAX
from llmgw.server.pages.addresses import model_url, replica_url
from llmgw.server.pages.changes import SAID, read_change, shown_again
from llmgw.server.pages.handlers import as_page, sentence
from llmgw.server.pages.plain_text import plain_lines
from llmgw.server.pages.rendering import PAGE_HEADERS, page

LINES_SHOWN = 200
ENGINE = "engine"


def replica_routes(backend: AdminBackend) -> list[Route]:
    """What pages link a replica by."""

    def find(replica_id: str) -> ReplicaView | None:
        return next((each for each in backend.replicas() if each.replica_id == replica_id), None)

    async def replica(request: Request) -> Response:
        border.only_parameters(request)
        replica_id = border.replica_id(request)
        found = find(replica_id)
        if found is None:
            onward = f"/admin/history?{urlencode({'subject': replica_id})}"
        else:
            onward = f"{model_url(found.model)}#replica-{replica_id}"
        return RedirectResponse(onward, 303, PAGE_HEADERS)

    async def restart(request: Request) -> Response:
        await read_change(request)
        replica_id = border.replica_id(request)
        found = find(replica_id)
        done = await backend.restart(replica_id, by=request.state.by)
        return shown_again(request, model_url(found.model) if found is not None else "/admin/models", done)

    async def logs(request: Request) -> Response:
        border.only_parameters(request, SAID, "rank", "stream", "lines")
        replica_id = border.replica_id(request)
        rank = border.whole_number(request, "rank", 0, 0, RANK_MAX)
        lines = border.whole_number(request, "lines", LINES_SHOWN, 1, LOG_LINES_MAX)
        assert rank is not None
        assert lines is not None
        stream = border.stream_name(request.query_params.get("stream", ENGINE))
        found = find(replica_id)
        view: LogView | None = None
        problem: AdminError | None = None
        try:
            view = await backend.logs(replica_id, rank, stream, None, lines)
        except AdminError as error:
            # Of a replica that is there the page is too: its node may answer the next time.
            if found is None or rank not in {shard.rank for shard in found.shards}:
                raise
            problem = error
        shard = next((each for each in found.shards if each.rank == rank), None) if found is not None else None
        return page(
            request,
            "logs.html",
            200 if problem is None else problem.status,
            replica_id=replica_id,
            replica=found,
            shard=shard,
            node=view.node if view is not None else shard.node if shard is not None else None,
            ranks=sorted(each.rank for each in found.shards) if found is not None else [rank],
            rank=rank,
            stream=stream,
            streams=sorted({ENGINE, stream, *(view.streams if view is not None else ())}),
            lines=lines,
            lines_max=LOG_LINES_MAX,
            text=plain_lines(view.text)[-lines:] if view is not None else [],
            over=view is not None and view.shard_over,
            problem=sentence(problem.message) if problem is not None else None,
            api=f"/api/v1/replicas/{replica_url(replica_id).rpartition('/')[2]}/logs?"
            + urlencode({"rank": rank, "stream": stream}),
        )

    return [
        Route("/admin/replicas/{replica}", as_page(replica), methods=["GET"]),
        Route("/admin/replicas/{replica}/logs", as_page(logs), methods=["GET"]),
        Route("/admin/replicas/{replica}/restart", as_page(restart), methods=["POST"]),
    ]
