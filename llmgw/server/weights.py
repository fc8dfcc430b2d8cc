"""What lies on the nodes' disks, asked of their agents, with the catalog's models in place of their sources."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from llmgw.messages.admin import NodeWeightsView, RemovedWeights, WeightsFileView
from llmgw.messages.agent import WeightsAnswer
from llmgw.server.admin.backend import AdminError
from llmgw.server.hub import Hub
from llmgw.server.hub_error import HubError

ANSWER_TIMEOUT_S = 30.0
ASKED_AT_ONCE_MAX = 64


class WeightsOnDisk:
    """`AdminWeights` over the hub. One bad node never breaks a listing: it says why it has none."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def view(self, node: str | None) -> list[NodeWeightsView]:
        """Every node's weights, or one's."""
        nodes = [self._known(node)] if node is not None else sorted(self._hub.fleet.nodes)
        turn = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

        async def ask(node_id: str) -> NodeWeightsView:
            async with turn:
                answer = await self._ask(node_id, [])
            return self._shown(node_id, answer)

        return list(await asyncio.gather(*(ask(node_id) for node_id in nodes)))

    async def remove(self, files: Mapping[str, list[str]], *, by: str) -> RemovedWeights:
        """Have nodes remove files; what something refers to by then is kept and named."""
        for node_id in files:
            self._known(node_id)
        turn = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

        async def ask(node_id: str) -> tuple[str, WeightsAnswer | str]:
            async with turn:
                return node_id, await self._ask(node_id, files[node_id])

        removed: dict[str, list[str]] = {}
        warnings = []
        for node_id, answer in await asyncio.gather(*(ask(node_id) for node_id in files if files[node_id])):
            if isinstance(answer, str):
                warnings.append(answer)
                continue
            if answer.error is not None:
                warnings.append(f"{node_id}: {answer.error}")
            if answer.removed:
                removed[node_id] = answer.removed
                self._hub.weights_removed(node_id, answer.removed, by)
            warnings += [f"{node_id}: {name} is kept: {why}" for name, why in answer.kept.items()]
        count = sum(map(len, removed.values()))
        what = "1 file is removed" if count == 1 else f"{count} files are removed"
        return RemovedWeights(message=what, removed=removed, warnings=warnings)

    def _known(self, node_id: str) -> str:
        known = sorted(self._hub.fleet.nodes)
        if node_id not in known:
            shown = f"known nodes: {', '.join(known[:20])}" if known else "there are none"
            raise AdminError(404, "unknown-node", f"there is no node {node_id!r}; {shown}")
        return node_id

    async def _ask(self, node_id: str, remove: list[str]) -> WeightsAnswer | str:
        sources = [model.source for model in self._hub.catalog.models if model.source]
        try:
            return await self._hub.questions.look_at_weights(node_id, sources, remove, ANSWER_TIMEOUT_S)
        except HubError as error:
            return error.message

    def _shown(self, node_id: str, answer: WeightsAnswer | str) -> NodeWeightsView:
        if isinstance(answer, str):
            return NodeWeightsView(node=node_id, problem=answer)
        if answer.listing is None:
            return NodeWeightsView(node=node_id, problem=f"{node_id}: {answer.error or 'it lists nothing'}")
        models: dict[str, list[str]] = {}
        for model in self._hub.catalog.models:
            models.setdefault(model.source, []).append(model.name)
        listing = answer.listing
        return NodeWeightsView(
            node=node_id,
            dir=listing.dir,
            disk_bytes=listing.disk_bytes,
            disk_free_bytes=listing.disk_free_bytes,
            left_out=listing.left_out,
            files=[
                WeightsFileView(
                    name=file.name,
                    size_bytes=file.size_bytes,
                    total_bytes=file.total_bytes,
                    state=file.state,
                    models=[name for source in file.sources for name in models.get(source, [])],
                    shards=file.shards,
                    unused=file.state != "foreign" and not file.sources and not file.shards,
                )
                for file in listing.files
            ],
        )
