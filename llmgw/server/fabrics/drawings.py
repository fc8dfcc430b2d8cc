"""The fabrics as API and pages ask for them: found by name, each map's graph built once, and their life."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from llmgw.fabric.report import map_text
from llmgw.fabric.svg import draw_svg
from llmgw.messages.topology import FabricSummary, TopologyLive, TopologyView
from llmgw.server.admin.answers import not_found
from llmgw.server.admin.backend import AdminError
from llmgw.server.fabrics.drawing import OnMap, build_graph, build_live, live_managers
from llmgw.server.fabrics.known import FabricMap, KnownFabric
from llmgw.server.hub import Hub

GRAPHS_KEPT_MAX = 16

Known = Callable[[], Sequence[KnownFabric]]
"""Every physical fabric that is known now."""


@dataclass(slots=True)
class _Drawn:
    """What follows from one map, made when it is first asked for."""

    taken: FabricMap
    version: str
    on_map: OnMap
    graph: msgspec.Raw | None = None
    svg: str | None = None


class Drawings:
    """`AdminDrawings` over the hub and what the watch of the fabrics knows."""

    def __init__(self, hub: Hub, known: Known = tuple) -> None:
        self._hub = hub
        self._known = known
        self._drawn: dict[str, _Drawn] = {}
        self._building = asyncio.Lock()

    async def overview(self) -> list[FabricSummary]:
        """Every fabric: the physical ones, then names that operators gave and nothing is known of yet."""
        summaries = [self._summary(known, await self._of(known)) for known in self._all()]
        return sorted(summaries, key=lambda one: (one.names or [one.id], one.id))

    async def topology(self, name: str) -> TopologyView:
        """The graph and the life of a fabric, by its id or the operator's name. Raises AdminError 404 or 409."""
        known = self._find(name)
        drawn = await self._of(known)
        if drawn is not None:
            # One at a time: pages that load together must not build it as often.
            async with self._building:
                if drawn.graph is None:
                    drawn.graph = await asyncio.to_thread(_encoded, drawn)
        graph = drawn.graph if drawn is not None else None
        return TopologyView(live=self._live(known, drawn), graph=graph or msgspec.Raw(b"null"))

    async def live(self, name: str) -> TopologyView:
        """Only what is alive. Raises AdminError 404 or 409."""
        known = self._find(name)
        return TopologyView(live=self._live(known, await self._of(known)))

    async def svg(self, name: str) -> str:
        """The map as one SVG. Raises AdminError 404, also when there is no map."""
        known = self._find(name)
        drawn = await self._of(known)
        if drawn is None:
            raise AdminError(404, "no-map", f"{name} has not been mapped yet: {why_no_map(known.map_error)}")
        async with self._building:
            if drawn.svg is None:
                drawn.svg = await asyncio.to_thread(draw_svg, drawn.taken.analysis)
        return drawn.svg

    def _live(self, known: KnownFabric, drawn: _Drawn | None) -> TopologyLive:
        clock = self._hub.clock
        now = clock.monotonic()
        return build_live(
            known,
            drawn.on_map if drawn is not None else None,
            self._hub.fleet,
            lambda node, adapter, port: self._hub.port_rates.rate(node, adapter, port, now),
            version=drawn.version if drawn is not None else None,
            now=now,
            wall=clock.wall(),
        )

    async def _of(self, known: KnownFabric) -> _Drawn | None:
        taken = known.map
        if taken is None:
            return None
        drawn = self._drawn.get(known.id)
        if drawn is None or drawn.taken is not taken:
            on_map = await asyncio.to_thread(OnMap.of, taken.analysis)
            # Whoever asked at the same time has the same map; the later of two maps stays.
            drawn = self._drawn.get(known.id)
            if drawn is None or drawn.taken.at <= taken.at:
                drawn = _Drawn(taken, _version(known.id, taken), on_map)
                self._drawn.pop(known.id, None)
                self._drawn[known.id] = drawn
                while len(self._drawn) > GRAPHS_KEPT_MAX:
                    del self._drawn[next(iter(self._drawn))]
        return drawn

    def _find(self, name: str) -> KnownFabric:
        everything = self._all()
        found = [known for known in everything if known.id == name] or [
            known for known in everything if name in known.names
        ]
        if not found:
            raise not_found("fabric", name, [one for known in everything for one in (known.names or (known.id,))])
        if len(found) > 1:
            ids = ", ".join(known.id for known in found)
            raise AdminError(
                409,
                "several-fabrics",
                f"{name} is the name of {len(found)} physical fabrics; ask for one by id: {ids}",
            )
        return found[0]

    def _all(self) -> list[KnownFabric]:
        known = list(self._known())
        named = {name for one in known for name in one.names}
        declared: dict[str, list[str]] = {}
        for node in self._hub.fleet.nodes.values():
            for offer in node.inventory.fabrics:
                if offer.name not in named:
                    declared.setdefault(offer.name, []).append(node.node_id)
        known += [
            KnownFabric(id=name, names=(name,), nodes=tuple(sorted(set(nodes))))
            for name, nodes in declared.items()
        ]
        return known

    def _summary(self, known: KnownFabric, drawn: _Drawn | None) -> FabricSummary:
        taken = known.map
        return FabricSummary(
            id=known.id,
            names=list(known.names),
            nodes=list(known.nodes),
            managers=live_managers(known, drawn.on_map if drawn is not None else None),
            managers_answer=known.managers.answer if known.managers is not None else "unknown",
            managers_at=known.managers_at,
            silent_since=known.silent_since,
            map_at=taken.at if taken is not None else None,
            map_error=known.map_error,
            map_text=map_text(taken.analysis) if taken is not None else None,
            slow=len(taken.analysis.slow) if taken is not None else 0,
            problems=list(known.problems),
            errors=list(known.errors),
        )


def why_no_map(error: str | None) -> str:
    """A sentence for a fabric that has no map."""
    return error or "the first map is taken within a few minutes after a node of it has joined"


def _version(fabric_id: str, taken: FabricMap) -> str:
    return hashlib.blake2b(f"{fabric_id} {taken.at!r} {taken.asked}".encode(), digest_size=6).hexdigest()


def _encoded(drawn: _Drawn) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(build_graph(drawn.taken, drawn.version)))
