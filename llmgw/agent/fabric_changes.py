"""Says it in this node's log when a fabric is lost or comes back: once, with the reason, where it is known."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from llmgw.messages.agent import FabricOffer

log = structlog.get_logger("agent")


class FabricChanges:
    """Remembers what was usable when it was last looked at. `look` is called by one thread at a time."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._usable: dict[str, bool] = {}

    def look(self, fabrics: Sequence[FabricOffer]) -> None:
        """Log what has changed since the last look; at the first, what is not usable."""
        for fabric in fabrics:
            before = self._usable.get(fabric.name)
            if fabric.usable is before:
                continue
            if not fabric.usable:
                what = "fabric cannot be used" if before is None else "fabric lost"
                log.warning(what, node=self._node_id, fabric=fabric.name, reason=fabric.reason)
            elif before is not None:
                log.info(
                    "fabric back",
                    node=self._node_id,
                    fabric=fabric.name,
                    adapters=fabric.adapters,
                    rate_gbps=fabric.rate_gbps,
                    # Usable with reservations: a slow link.
                    **({"reason": fabric.reason} if fabric.reason else {}),
                )
        self._usable = {fabric.name: fabric.usable for fabric in fabrics}
