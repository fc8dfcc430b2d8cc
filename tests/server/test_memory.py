"""What a starting server believes of the nodes that its store knows."""

from __future__ import annotations

import asyncio
from pathlib import Path

from llmgw.fleet.model import NodeState
from llmgw.server.memory import known_nodes
from llmgw.server.store.store import Store


def test_a_starting_server_knows_the_nodes_with_their_flags_and_has_heard_of_none(tmp_path: Path) -> None:
    async def body() -> None:
        store = await Store.open(tmp_path, 1.0)
        for node in ("plain", "cordoned", "draining", "forced"):
            store.put_node(node, 1.0, address=f"10.0.0.{len(node)}")
        store.put_cordoned("cordoned", True, 2.0)
        store.put_draining("draining", True, 2.0)
        store.put_draining("forced", True, 2.0, force=True)
        await store.close()
        store = await Store.open(tmp_path, 3.0)
        nodes = {node.node_id: node for node in known_nodes(store, 50.0)}
        await store.close()
        assert {name: (node.cordoned, node.draining, node.drain_forced) for name, node in nodes.items()} == {
            "plain": (False, False, False),
            "cordoned": (True, False, False),
            "draining": (False, True, False),
            "forced": (False, True, True),
        }
        for node in nodes.values():
            assert (node.state, node.known, node.session, node.since) == (NodeState.UNKNOWN, True, None, 50.0)
        assert nodes["plain"].address == "10.0.0.5"

    asyncio.run(body())
