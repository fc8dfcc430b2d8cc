"""Invariants 3, 5 and 6 as far as routes go: what the routers are told, and where requests end up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgw.fleet.model import NodeState
from llmgw.messages.agent import LIVE_PHASES
from llmgw.messages.routes import RouteEndpoint, RouteTable
from llmgw.server.hub import Hub
from tests.simulation.watch import Watch

if TYPE_CHECKING:
    from tests.simulation.world import World


class RouteWatch(Watch):
    """Looks on when a table is imported, published and used."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._kept_routes: dict[str, RouteEndpoint] = {}

    def imported(self, hub: Hub, table: RouteTable) -> None:
        """The routers' table of before, whose routes must not flicker."""
        self._kept_routes = {
            endpoint.id: endpoint
            for model in table.models
            for endpoint in model.endpoints
            if endpoint.node not in self._speakers
        }

    def published(self, table: RouteTable) -> None:
        """Invariant 3 and section 3: an imported route stays until its node speaks or settling is over."""
        hub = self._world.server.hub
        if hub is None:
            return
        self._touched = True
        there = {endpoint.id for model in table.models for endpoint in model.endpoints}
        names = {model.name for model in table.models}
        if hub.fleet.settling:
            for endpoint_id, endpoint in self._kept_routes.items():
                if endpoint.node in self._speakers or endpoint_id.rpartition("-")[0] not in names:
                    continue
                if any(
                    said.phase not in LIVE_PHASES and shard_id.rpartition(".")[0] == endpoint_id
                    for shard_id, said in self._said.items()
                ):
                    # Another rank has ended, and a replica is one unit; its node may tell of it no more later.
                    self._let_go.add(endpoint_id)
                    continue
                if endpoint_id in self._let_go:
                    continue  # another rank's node has registered without it
                self.expect(
                    endpoint_id in there,
                    "3 imported routes",
                    f"{endpoint_id} was withdrawn while settling, though {endpoint.node} has not spoken",
                )

    def _routes(self, hub: Hub) -> None:
        if hub.table is None:
            return
        for model in hub.table.models:
            for endpoint in model.endpoints:
                node = hub.fleet.nodes.get(endpoint.node or "")
                said = self._said.get(f"{endpoint.id}.0")
                spoken = endpoint.node in self._speakers
                if endpoint.id in hub.fleet.inherited and not spoken:
                    self.checks["6 routes"] += 1
                    continue
                self.expect(
                    said is not None and said.phase == "ready",
                    "6 routes",
                    f"{endpoint.id} is routed to while its leader is {said.phase if said else 'not reported'}",
                )
                machine = self._world.machine_at(endpoint.host)
                self.expect(
                    machine is not None
                    and machine.node_id == endpoint.node
                    and (said is None or said.http_port == endpoint.port),
                    "5",
                    f"{endpoint.id} is routed to {endpoint.host}:{endpoint.port}, not where {endpoint.node} is",
                )
                self.expect(
                    node is not None and node.state is not NodeState.LOST,
                    "6 routes",
                    f"{endpoint.id} is routed to on {endpoint.node}, which is lost or unknown",
                )

    def requested(self, model: str, endpoint: RouteEndpoint) -> None:
        """A client's request goes to an endpoint: it must never reach another model's engine."""
        if any(clone.address == endpoint.host for clone in self._world.clones):
            return  # two machines with one address: who answers is not in anybody's hands
        engine = self._world.engines.at(self._world.machine_at(endpoint.host), endpoint.port)
        self.expect(
            engine is None or engine.spec.replica_id == endpoint.id,
            "5 right engine",
            f"a request for {model} went to {endpoint.id} at port {endpoint.port}, where another engine is: "
            f"{engine.spec.replica_id if engine else ''}",
        )
