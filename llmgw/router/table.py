"""The table that a router routes by: models by name or alias, with what is known of each and of its endpoints.

Pure: time is an argument, in seconds of a monotonic clock. It knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.messages.routes import EndpointFigures, ModelRoute, RouteEndpoint, RouteTable, TableVersion
from llmgw.router.affinity import Ring, ring_key
from llmgw.router.breaker import BreakerState
from llmgw.router.choice import Pool, share_capacity
from llmgw.router.endpoint import Endpoint
from llmgw.router.retry_budget import RetryBudget


class Model:
    """A route of the table with its endpoints' states. `budget` outlives tables."""

    __slots__ = ("budget", "name", "pool", "route")

    def __init__(self, route: ModelRoute, pool: Pool, budget: RetryBudget) -> None:
        self.route = route
        self.name = route.name
        self.pool = pool
        self.budget = budget

    @property
    def endpoints(self) -> list[Endpoint]:
        return self.pool.endpoints


class RoutingTable:
    """The table that this router routes by, and the endpoints that it no longer names but that still run."""

    def __init__(self, *, idle_limit_s: float) -> None:
        self.snapshot: RouteTable | None = None
        self.models: dict[str, Model] = {}
        """By name and by alias; a name wins over another model's alias."""
        self.problems: list[str] = []
        """Sentences about endpoints of the last table that had to be left out."""
        self._endpoints: dict[tuple[str, str, str, int, bool], Endpoint] = {}
        self._idle_limit_s = idle_limit_s

    @property
    def version(self) -> TableVersion | None:
        return self.snapshot.version if self.snapshot is not None else None

    def apply(self, snapshot: RouteTable, now: float) -> bool:
        """Replace the table when `snapshot` is of another epoch or newer. False when it is neither."""
        current = self.version
        if (
            current is not None
            and snapshot.version.epoch == current.epoch
            and snapshot.version.number <= current.number
        ):
            return False
        self.problems = []
        named: set[Endpoint] = set()
        models: list[Model] = []
        for route in snapshot.models:
            each = (self._endpoint(route.name, endpoint, now) for endpoint in route.endpoints)
            endpoints = [endpoint for endpoint in each if endpoint is not None]
            named.update(endpoints)
            models.append(self._model(route, endpoints, now))
        by_name = {model.name: model for model in models}
        for model in models:
            for alias in model.route.aliases:
                by_name.setdefault(alias, model)
        for key, endpoint in list(self._endpoints.items()):
            if endpoint not in named:
                endpoint.retired = True
                if not endpoint.outstanding and not endpoint.idle:
                    del self._endpoints[key]
        self.models = by_name
        self.snapshot = snapshot
        return True

    def _model(self, route: ModelRoute, endpoints: list[Endpoint], now: float) -> Model:
        """The model anew; its budget, and a ring that would be the same, are kept."""
        before = self.models.get(route.name)
        if before is not None and before.name != route.name:  # an alias until now
            before = None
        share_capacity(endpoints)
        ring = None
        homes = [endpoint for endpoint in endpoints if endpoint.route.weight]
        if route.prefix_affinity and len(homes) > 1:
            ring = before.pool.ring if before is not None else None
            if ring is None or ring.made_of != ring_key(homes):
                ring = Ring(homes)
        budget = before.budget if before is not None else RetryBudget(now)
        return Model(route, Pool(endpoints, ring), budget)

    def _endpoint(self, model: str, route: RouteEndpoint, now: float) -> Endpoint | None:
        key = (model, route.id, route.host, route.port, route.tls)
        try:
            endpoint = self._endpoints.get(key)
            if endpoint is None:
                endpoint = self._endpoints[key] = Endpoint(route, idle_limit_s=self._idle_limit_s, now=now)
            else:
                endpoint.update(route, now)
        except ValueError as error:
            self.problems.append(str(error))
            return None
        return endpoint

    def take_figures(self, message: EndpointFigures, now: float) -> None:
        """What engines say of their load, instead of what they said before."""
        for endpoint in self._endpoints.values():
            endpoint.take_figure(message.figures.get(endpoint.id), now)

    def endpoints(self) -> Iterable[Endpoint]:
        """Every endpoint, retired ones that are not forgotten yet included."""
        return self._endpoints.values()

    def forget_retired(self) -> None:
        """Drop what is neither named nor in use."""
        for key, endpoint in list(self._endpoints.items()):
            if endpoint.retired and not endpoint.outstanding and not endpoint.idle:
                del self._endpoints[key]

    def in_flight(self) -> dict[str, int]:
        """Outstanding requests by endpoint id, without zeros."""
        counts: dict[str, int] = {}
        for endpoint in self._endpoints.values():
            if endpoint.outstanding:
                counts[endpoint.id] = counts.get(endpoint.id, 0) + endpoint.outstanding
        return counts

    def breakers(self, now: float) -> dict[str, BreakerState]:
        """Endpoint ids whose breaker is not closed, with what it is."""
        return {
            endpoint.id: endpoint.breaker.state(now)
            for endpoint in self._endpoints.values()
            if endpoint.breaker.open_until and not endpoint.retired
        }
