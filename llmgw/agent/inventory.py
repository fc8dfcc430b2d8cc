"""What the node has, read again for every heartbeat without ever holding one up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from llmgw.messages.agent import GPUS_PER_NODE_MAX, PORTS_PER_NODE_MAX, Inventory
from llmgw.messages.findings import Finding

log = structlog.get_logger("agent")

FINDINGS_MAX = 255
# nvidia-smi takes a second or two on a busy node, twice where GPUs are in use, and hangs on a sick one.
FIRST_READ_S = 30.0
PATIENCE_S = 3.0


class InventoryReader:
    """Keeps the newest inventory. `read` is blocking and runs in a thread; at most one runs at a time."""

    def __init__(self, read: Callable[[], Inventory], *, node_id: str) -> None:
        self._read = read
        self._node_id = node_id
        self._latest: Inventory | None = None
        self._reading: asyncio.Future[Inventory] | None = None
        self._overdue = False

    async def fresh(self) -> Inventory:
        """Read anew. A reading that takes too long goes on behind, and the last one is given, with a finding.

        Who asks while one runs waits for the same.
        """
        if self._reading is None:
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._read))
        reading = self._reading
        wait_s = FIRST_READ_S if self._latest is None and not self._overdue else PATIENCE_S
        done, _ = await asyncio.wait({reading}, timeout=wait_s)
        if not done:
            self._overdue = True
            return self._with_finding(
                "inventory-slow",
                f"reading GPUs and adapters takes longer than {wait_s:g} s; the last reading stands",
                "run nvidia-smi on the node: when it hangs, the driver or a GPU does",
            )
        if self._reading is reading:
            self._reading, self._overdue = None, False
        if reading.cancelled() or (error := reading.exception()) is not None:
            log.error("the inventory cannot be read", error=repr(None if reading.cancelled() else error))
            return self._with_finding(
                "inventory-unreadable",
                "GPUs and adapters cannot be read; the last reading stands",
                "see the agent's log",
            )
        self._latest = _bounded(reading.result())
        return self._latest

    async def latest(self) -> Inventory:
        """The newest reading without reading again, where there is one."""
        return self._latest if self._latest is not None else await self.fresh()

    def _with_finding(self, check: str, what: str, remedy: str) -> Inventory:
        known = self._latest or Inventory()
        finding = Finding(check=check, severity="error", where=self._node_id, what=what, remedy=remedy)
        return msgspec.structs.replace(known, findings=[*known.findings[:FINDINGS_MAX], finding])


def _bounded(inventory: Inventory) -> Inventory:
    """Within the limits that the server holds messages to; beyond them it would refuse the whole message."""
    return msgspec.structs.replace(
        inventory,
        gpus=inventory.gpus[:GPUS_PER_NODE_MAX],
        ports=inventory.ports[:PORTS_PER_NODE_MAX],
        findings=inventory.findings[:FINDINGS_MAX],
    )
