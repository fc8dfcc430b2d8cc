"""The hub's memory: what it writes down goes to the store, in order and without waiting."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.config.server import KeyRule
from llmgw.fleet.events import Event
from llmgw.fleet.lives import Life
from llmgw.fleet.model import Node
from llmgw.messages.routes import KeyRoute
from llmgw.server.api_keys import ApiKeys
from llmgw.server.store.interface import StoreInterface


class StoreMemory:
    """`Memory` over the store."""

    def __init__(self, store: StoreInterface) -> None:
        self._store = store

    def record(self, events: Iterable[Event], at: float) -> None:
        """Keep events in the history."""
        for event in events:
            self._store.record(
                event.kind,
                event.subject,
                event.event,
                at,
                reason=event.reason,
                model=event.model,
                nodes=event.nodes,
                once=event.once,
            )

    def node_registered(self, node: Node, life: Life, at: float) -> None:
        """Keep that a node has registered, and what it said of its fabrics."""
        self._store.put_node(node.node_id, at, address=node.address, life=life)
        self.fabrics_changed(node, at)

    def fabrics_changed(self, node: Node, at: float) -> None:
        """Keep what a node said of its fabrics; the store records what differs from the last time."""
        self._store.put_fabrics(node.node_id, node.inventory.fabrics, at)

    async def stored(self, timeout_s: float) -> bool:
        """True once everything kept before is committed; False when it is not within `timeout_s`."""
        return await self._store.stored(timeout_s)


def known_nodes(store: StoreInterface, now: float) -> list[Node]:
    """The nodes that the store knows, as a starting server believes them: not heard yet, flags as they were."""
    return [
        Node(
            record.id,
            since=now,
            known=True,
            address=record.address,
            cordoned=record.cordoned,
            draining=record.draining,
            drain_forced=record.drain_forced,
        )
        for record in store.nodes().values()
    ]


def known_keys(store: StoreInterface, rule: KeyRule, own: KeyRoute | None = None) -> ApiKeys:
    """The API keys that the store has, and `own`: the first table that is published already has them."""
    keys = ApiKeys(rule, own)
    keys.take(store.api_keys.all(), any_made=store.api_keys.any_made)
    return keys


def known_lives(store: StoreInterface) -> dict[str, Life]:
    """Node id → the life that registered last, so that a message of an older one is known after a restart too."""
    return {record.id: record.life for record in store.nodes().values() if record.life is not None}
