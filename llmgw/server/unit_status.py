"""How the control plane is, in the one sentence that `systemctl status` shows."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from llmgw.config.notify import Notifier
from llmgw.fleet.model import NodeState
from llmgw.server.hub import Hub

STATUS_EVERY_S = 5.0


def unit_status(hub: Hub, listen: str) -> str:
    """Models, nodes and whether it settles. `listen` is the model API's address."""
    nodes = hub.fleet.nodes.values()
    ready = sum(node.state is NodeState.READY for node in nodes)
    settling = "; places and stops nothing until nodes that it knows are back" if hub.fleet.settling else ""
    return (
        f"{_count(hub.catalog.models, 'model')} on {listen}; {ready} of {_count(nodes, 'node')} ready{settling}."
    )


async def tell_status(notifier: Notifier, hub: Hub, listen: str) -> None:
    """Keep what `systemctl status` shows true, until cancelled."""
    while True:
        await asyncio.sleep(STATUS_EVERY_S)
        notifier.status(unit_status(hub, listen))


def _count(things: Collection[object], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"
