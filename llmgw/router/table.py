"""The table that a router routes by: models by name or alias, with what is known of each and of its endpoints.

Pure: time is an argument, in seconds of a monotonic clock. It knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from llmgw.messages.routes import EndpointFigures, ModelRoute, RouteEndpoint, RouteTable, TableVersion
from llmgw.router.admission import Admission
from llmgw.router.affinity import Ring, ring_key
from llmgw.router.breaker import BreakerState
from llmgw.router.choice import Pool, share_capacity
from llmgw.router.endpoint import Endpoint
from llmgw.router.retry_budget import RetryBudget


class Model:
    """A route of the table with its endpoints' states. `budget` and `admission` outlive tables."""

    __slots__ = ("admission", "budget", "name", "pool", "route")

    def __init__(
        self, route: ModelRoute, pool: Pool, budget: RetryBudget, admission: Admission | None = None
    ) -> None:
        self.route = route
        self.name = route.name
        self.pool = pool
        self.budget = budget
        self.admission = admission if admission is not None else Admission()

    @property
    def endpoints(self) -> list[Endpoint]:
        return self.pool.endpoints


class RoutingTable:
    """The table that this router routes by, and the endpoints that it no longer names but that still run."""

    def __init__(self, *, idle_limit_s: float, workers: int = 1) -> None:
        self.snapshot: RouteTable | None = None
        self.models: dict[str, Model] = {}
        """By name and by alias; a name wins over another model's alias."""
        self.problems: list[str] = []
        """Sentences about endpoints of the last table that had to be left out."""
        self._endpoints: dict[tuple[str, str, str, int, bool], Endpoint] = {}
        self._idle_limit_s = idle_limit_s
        self._workers = workers
        self._parts: dict[str, tuple[int, int | None]] = {}
        """By endpoint id: this router's part of its concurrency, and what that was then."""

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
                endpoint.part = None
                if not endpoint.outstanding and not endpoint.idle:
                    del self._endpoints[key]
        self._parts = {each.id: self._parts[each.id] for each in named if each.id in self._parts}
        self.models = by_name
        self.snapshot = snapshot
        return True

    def _model(self, route: ModelRoute, endpoints: list[Endpoint], now: float) -> Model:
        """The model anew; its budget, what waits for it, and a ring that would be the same, are kept."""
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
        admission = before.admission if before is not None else Admission()
        model = Model(route, Pool(endpoints, ring), budget, admission)
        admission.follow(model, self._workers)
        return model

    def _endpoint(self, model: str, route: RouteEndpoint, now: float) -> Endpoint | None:
        key = (model, route.id, route.host, route.port, route.tls)
        try:
            endpoint = self._endpoints.get(key)
            if endpoint is None:
                endpoint = self._endpoints[key] = Endpoint(route, idle_limit_s=self._idle_limit_s, now=now)
                part, limit = self._parts.get(route.id, (None, None))
                endpoint.take_part(self._workers, part if limit == route.concurrency else None)
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

    def share(self, workers: int, parts: Mapping[str, int]) -> None:
        """This router is one of so many; of the concurrency of some endpoints (by id) it has a part that is not
        equal to the others'."""
        self._workers = workers
        self._parts = {}
        for endpoint in self._endpoints.values():
            part = None if endpoint.retired else parts.get(endpoint.id)
            endpoint.take_part(workers, part)
            if part is not None:
                self._parts[endpoint.id] = (part, endpoint.route.concurrency)
        for model in self.each_model():
            model.admission.follow(model, workers)

    def each_model(self) -> Iterator[Model]:
        """Every model once, whatever its aliases."""
        return (model for name, model in self.models.items() if name == model.name)

    def queued(self) -> dict[str, int]:
        """How many requests wait for each model to have room, without zeros."""
        return {model.name: model.admission.waiting for model in self.each_model() if model.admission.waiting}

    def parts(self) -> dict[str, int]:
        """Endpoint ids, with this router's part of their concurrency where it is not equal to the others'."""
        return {endpoint.id: endpoint.part for endpoint in self._endpoints.values() if endpoint.part is not None}

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

    def take_alive(self) -> list[str]:
        """Ids of endpoints that gave body bytes since the last call."""
        ids: set[str] = set()
        for endpoint in self._endpoints.values():
            if endpoint.alive:
                endpoint.alive = False
                ids.add(endpoint.id)
        return sorted(ids)

    def breakers(self, now: float) -> dict[str, BreakerState]:
        """Endpoint ids whose breaker is not closed, with what it is."""
        return {
            endpoint.id: endpoint.breaker.state(now)
            for endpoint in self._endpoints.values()
            if endpoint.breaker.open_until and not endpoint.retired
        }
