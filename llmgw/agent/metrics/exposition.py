"""The whole text of a scrape of an agent, and every family that may be in it. It reads no hardware: what the last
heartbeat told is what is told here, so that a scraper cannot make a node busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from llmgw.agent.metrics import link, shards
from llmgw.agent.metrics.link import Link
from llmgw.agent.metrics.shards import shard_text
from llmgw.messages.agent import HeldShard, Inventory
from llmgw.metrics import certificates, downloads, engines, findings, gpus, ports, process
from llmgw.metrics.certificates import certificate_text
from llmgw.metrics.family import Family
from llmgw.metrics.findings import finding_text
from llmgw.metrics.gpus import gpu_text
from llmgw.metrics.ports import port_text
from llmgw.metrics.process import process_text
from llmgw.pki.expiry import CertificateEnd

FAMILIES: tuple[Family, ...] = tuple(
    family
    for module in (process, link, gpus, ports, shards, downloads, engines, certificates, findings)
    for family in module.FAMILIES
)


class AgentMetrics:
    """The metrics of one agent."""

    def __init__(
        self,
        node_id: str,
        *,
        link: Link,
        connected: Callable[[], bool],
        inventory: Callable[[], Awaitable[Inventory]],
        held: Callable[[], Awaitable[Sequence[HeldShard]]],
        failed: Callable[[], Mapping[str, int]],
        certificates: Callable[[], Sequence[CertificateEnd]],
        wall: Callable[[], float],
    ) -> None:
        """`inventory` is the last that was read, and `failed` counts failed shards by model. `wall` gives seconds
        since the epoch."""
        self._node_id = node_id
        self._link = link
        self._connected = connected
        self._inventory = inventory
        self._held = held
        self._failed = failed
        self._certificates = certificates
        self._wall = wall
        self._started_at = wall()

    async def text(self) -> bytes:
        """The whole exposition, of the type `CONTENT_TYPE`."""
        inventory, held = await self._inventory(), await self._held()
        ends = await asyncio.to_thread(self._certificates)
        node_id = self._node_id
        return (
            process_text("agent", self._started_at)
            + self._link.text(node_id, connected=self._connected())
            + gpu_text([(node_id, inventory.gpus)])
            + port_text([(node_id, inventory.ports)])
            + shard_text(node_id, held, self._failed())
            + certificate_text([(end.name, end.kind, end.at) for end in ends], self._wall())
            + finding_text(inventory.findings)
        ).encode()
