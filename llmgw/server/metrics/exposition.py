"""The whole text of a scrape, and every family that may be in it.

What the loop changes is read on the loop, in a few milliseconds. GPUs and ports, which are nearly all of a large
fleet's text, are written in a thread: agents' inventories are never changed, only replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from llmgw.messages.agent import Inventory
from llmgw.metrics import certificates, downloads, engines, findings, gpus, ports, process
from llmgw.metrics.certificates import certificate_text
from llmgw.metrics.downloads import download_text
from llmgw.metrics.engines import engine_text
from llmgw.metrics.family import Family
from llmgw.metrics.findings import finding_text
from llmgw.metrics.gpus import gpu_text
from llmgw.metrics.ports import port_text
from llmgw.server.figures import figures_by_model
from llmgw.server.metrics import agents, control, endpoints, fabrics, keys, nodes, replicas, requests, routers
from llmgw.server.metrics.agents import agent_text
from llmgw.server.metrics.control import control_text
from llmgw.server.metrics.endpoints import endpoint_text
from llmgw.server.metrics.fabrics import fabric_text
from llmgw.server.metrics.keys import key_text
from llmgw.server.metrics.nodes import node_text
from llmgw.server.metrics.replicas import replica_text
from llmgw.server.metrics.requests import request_text
from llmgw.server.metrics.routers import router_text
from llmgw.server.metrics.source import Source

FAMILIES: tuple[Family, ...] = tuple(
    family
    for module in (
        *(process, control, agents, nodes, gpus, ports, fabrics, replicas, downloads, endpoints, requests),
        *(engines, keys, routers, certificates, findings),
    )
    for family in module.FAMILIES
)
"""Everything that a server's `/metrics` may have. Another corner is a module, a word here and a line below."""


class Metrics:
    """The metrics of one server. Nothing is kept between scrapes but what the hub keeps itself."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._scrape: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """The whole exposition, of the type `CONTENT_TYPE`. Who asks while it is made gets the same."""
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.create_task(self._text())
        return await asyncio.shield(self._scrape)

    async def _text(self) -> bytes:
        fleet = self._source.hub.fleet
        inventories = [(node.node_id, node.inventory) for node in fleet.nodes.values()]
        read = []
        for part in PARTS:
            read.append(part(self._source))
            await asyncio.sleep(0)  # others have their turn: no part takes long, and all of them together may
        return await asyncio.to_thread(_with_hardware, "".join(read), inventories)


def _with_hardware(read: str, inventories: Iterable[tuple[str, Inventory]]) -> bytes:
    inventories = list(inventories)
    found = gpu_text((node_id, inventory.gpus) for node_id, inventory in inventories)
    found += port_text((node_id, inventory.ports) for node_id, inventory in inventories)
    return (read + found).encode()


def _downloads(source: Source) -> str:
    return download_text(
        (shard.node_id, replica.model, shard.progress)
        for replica in source.hub.fleet.replicas.values()
        for shard in replica.shards.values()
        if shard.phase == "fetching" and shard.progress is not None
    )


def _engines(source: Source) -> str:
    hub = source.hub
    said = figures_by_model(hub.fleet, hub.clock.monotonic())
    return engine_text({model.name: said.get(model.name, []) for model in hub.catalog.models})


def _certificates(source: Source) -> str:
    own = [(end.name, end.kind, end.at) for end in source.certificates()]
    of_nodes = [
        (node.node_id, "node", node.certificate_expires_at)
        for node in source.hub.fleet.nodes.values()
        if node.certificate_expires_at is not None
    ]
    return certificate_text([*own, *of_nodes], source.hub.clock.wall())


def _findings(source: Source) -> str:
    return finding_text(source.findings())


PARTS: tuple[Callable[[Source], str], ...] = (
    *(control_text, agent_text, node_text, fabric_text, replica_text, _downloads, endpoint_text, request_text),
    *(_engines, key_text, router_text, _certificates, _findings),
)
