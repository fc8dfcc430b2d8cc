"""The tables that routers route by: made from the fleet, numbered, and published once they may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llmgw.config.catalog import Catalog
from llmgw.fleet.model import Fleet, ReplicaState
from llmgw.fleet.routes import routes
from llmgw.messages.routes import ModelRoute, RouteEndpoint, RouteTable, TableVersion
from llmgw.server.api_keys import ApiKeys


class RouteTables:
    """One server's tables. None is made while they are held: routers that live are asked for theirs first."""

    def __init__(self, epoch: str, publish: Callable[[RouteTable], None], created_s: int) -> None:
        """`created_s` is what models are said to be created at, seconds since the epoch."""
        self.latest: RouteTable | None = None
        self.held = True
        self._epoch = epoch
        self._publish = publish
        self._created_s = created_s

    def update(
        self,
        fleet: Fleet,
        catalog: Catalog,
        static: dict[str, list[RouteEndpoint]],
        keys: ApiKeys,
        context_lengths: Mapping[str, int],
    ) -> bool:
        """Publish what follows from the fleet if it differs; True when a replica's route is withdrawn by that."""
        if self.held:
            return False
        models = routes(fleet, catalog, static, self._created_s, context_lengths)
        if self.latest is None or models != self.latest.models or self._differ(self.latest, keys):
            self.latest = self._next(models, keys)
            self._publish(self.latest)
        withdrawn = False
        for replica in fleet.replicas.values():
            if replica.state is ReplicaState.DRAINING and replica.withdrawn is None:
                replica.withdrawn = self.latest.version
                withdrawn = True
        return withdrawn

    def set_keys(self, keys: ApiKeys) -> None:
        """Publish the latest table with these keys at once. One that is not made yet will have them."""
        if self.latest is not None and self._differ(self.latest, keys):
            self.latest = self._next(self.latest.models, keys)
            self._publish(self.latest)

    def _differ(self, table: RouteTable, keys: ApiKeys) -> bool:
        return table.keys_required != keys.required or table.keys != keys.routes

    def _next(self, models: list[ModelRoute], keys: ApiKeys) -> RouteTable:
        number = self.latest.version.number + 1 if self.latest is not None else 1
        return RouteTable(
            version=TableVersion(self._epoch, number),
            models=models,
            keys=keys.routes,
            keys_required=keys.required,
        )
