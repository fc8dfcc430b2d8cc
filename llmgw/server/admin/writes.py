"""The changes of the admin API. Each is made in the name of the token that asked for it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmgw.messages.admin import (
    ApplyCatalog,
    CheckEngine,
    CreateToken,
    Drain,
    PlanCatalog,
    RemoveWeightsWish,
    Scale,
)
from llmgw.messages.agent import WEIGHTS_FILES_MAX
from llmgw.server.admin import border
from llmgw.server.admin.answers import answer
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.admin.names import model_name
from llmgw.server.admin.reads import REVISION_MAX

REPLICAS_MAX = 1000


class Writes:
    """The POST and DELETE routes over one backend."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    async def scale(self, request: Request) -> Response:
        border.only_parameters(request)
        wish = await border.body_as(request, Scale)
        if not 0 <= wish.replicas <= REPLICAS_MAX:
            raise border.bad_request(f"replicas must be 0 to {REPLICAS_MAX}, not {wish.replicas}")
        model = model_name(self._backend, wish.model)
        profile = None if wish.profile is None else border.plain_name(wish.profile, "profile")
        by, confirmed = _by(request), wish.confirmed
        return answer(await self._backend.scale(model, profile, wish.replicas, confirmed=confirmed, by=by))

    async def plan_catalog(self, request: Request) -> Response:
        border.only_parameters(request)
        wish = await border.body_as(request, PlanCatalog, bytes_max=border.CATALOG_BYTES_MAX)
        _one_of(wish.models, wish.revision)
        return answer(await self._backend.catalog.plan(wish))

    async def apply_catalog(self, request: Request) -> Response:
        border.only_parameters(request)
        wish = await border.body_as(request, ApplyCatalog, bytes_max=border.CATALOG_BYTES_MAX)
        _one_of(wish.models, wish.revision)
        border.note(wish.note)
        return answer(await self._backend.catalog.apply(wish, by=_by(request)))

    async def restart(self, request: Request) -> Response:
        replica = border.replica_id(request)
        await _bare(request)
        return answer(await self._backend.restart(replica, by=_by(request)))

    async def cordon(self, request: Request) -> Response:
        node = border.node_id(request)
        await _bare(request)
        return answer(await self._backend.cordon(node, True, by=_by(request)))

    async def uncordon(self, request: Request) -> Response:
        node = border.node_id(request)
        await _bare(request)
        return answer(await self._backend.cordon(node, False, by=_by(request)))

    async def drain(self, request: Request) -> Response:
        border.only_parameters(request)
        node = border.node_id(request)
        wish = await border.body_as(request, Drain, empty=Drain())
        return answer(await self._backend.drain(node, force=wish.force, by=_by(request)))

    async def check_engine(self, request: Request) -> Response:
        # It changes nothing, and yet it is no GET: it runs a program on the node.
        border.only_parameters(request)
        node = border.node_id(request)
        wish = await border.body_as(request, CheckEngine)
        border.plain_name(wish.engine, "engine")
        return answer(await self._backend.check_engine(node, wish))

    async def undrain(self, request: Request) -> Response:
        node = border.node_id(request)
        await _bare(request)
        return answer(await self._backend.undrain(node, by=_by(request)))

    async def remove_node(self, request: Request) -> Response:
        border.only_parameters(request, "force")
        node = border.node_id(request)
        await border.no_body(request)
        force = border.whole_number(request, "force", 0, 0, 1) == 1
        return answer(await self._backend.remove_node(node, force=force, by=_by(request)))

    async def remove_weights(self, request: Request) -> Response:
        border.only_parameters(request)
        wish = await border.body_as(request, RemoveWeightsWish, bytes_max=border.CATALOG_BYTES_MAX)
        for node, names in wish.files.items():
            border.as_node_id(node)
            if len(names) > WEIGHTS_FILES_MAX:
                raise border.bad_request(f"files names more than {WEIGHTS_FILES_MAX} of {node}")
        return answer(await self._backend.weights.remove(wish.files, by=_by(request)))

    async def accept_fabric(self, request: Request) -> Response:
        name = border.plain_name(request.path_params["fabric"], "fabric")
        await _bare(request)
        return answer(await self._backend.fabrics.accept(name, by=_by(request)))

    async def create_token(self, request: Request) -> Response:
        border.only_parameters(request)
        name = border.token_name((await border.body_as(request, CreateToken)).name)
        return answer(await self._backend.create_token(name, by=_by(request)), status=201)

    async def revoke_token(self, request: Request) -> Response:
        name = border.token_name(request.path_params["name"])
        await _bare(request)
        return answer(await self._backend.revoke_token(name, by=_by(request)))


def _one_of(models: list[dict[str, Any]] | None, revision: int | None) -> None:
    if (models is None) == (revision is None):
        raise border.bad_request("give either models, or the number of a revision whose content is meant")
    if revision is not None and not 1 <= revision <= REVISION_MAX:
        raise border.bad_request(f"revision must be a whole number from 1 to {REVISION_MAX}, not {revision}")


async def _bare(request: Request) -> None:
    border.only_parameters(request)
    await border.no_body(request)


def _by(request: Request) -> str:
    by: str = request.state.by
    return by
