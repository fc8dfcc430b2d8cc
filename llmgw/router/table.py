"""Which endpoint a request goes to: lookup by name or alias, least outstanding, one breaker per endpoint.

Pure: time and randomness are arguments. It knows nothing of sockets; an endpoint merely carries its idle ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from llmgw.config.addresses import join_host_port
from llmgw.messages.routes import ModelRoute, RouteEndpoint, RouteTable, TableVersion

if TYPE_CHECKING:
    from llmgw.router.upstream import UpstreamConnection

FAILURES_TO_OPEN = 3
OPEN_S = 2.0
OPEN_S_MAX = 30.0
# What a failure weighs against outstanding requests, and how fast that fades. Without it, an endpoint that
# fails at once always has the fewest outstanding and draws everything.
FAILURE_LOAD = 8.0
FAILURE_HALF_LIFE_S = 2.0
_LOAD_FORGOTTEN = 0.05


class Endpoint:
    """An endpoint of one model with what this router knows of it. Survives the replacement of tables.

    `head` is what stands before the request's own headers: Host and, when the engine has a key, Authorization.
    """

    __slots__ = (
        "_failure_load",
        "_failure_load_at",
        "base_path",
        "failures",
        "head",
        "id",
        "idle",
        "idle_limit_s",
        "open_s",
        "open_until",
        "outstanding",
        "probing",
        "retired",
        "route",
    )

    def __init__(self, route: RouteEndpoint, *, idle_limit_s: float) -> None:
        self.outstanding = 0
        self.failures = 0
        self.open_until = 0.0
        self.open_s = OPEN_S
        self.probing = False
        self.retired = False
        self.idle: list[UpstreamConnection] = []
        self.idle_limit_s = idle_limit_s
        self._failure_load = 0.0
        self._failure_load_at = 0.0
        self.update(route)

    def update(self, route: RouteEndpoint) -> None:
        """Take what a newer table says. Raises ValueError when key or path could not stand in a header."""
        head = f"host: {join_host_port(route.host, route.port)}\r\n"
        if route.api_key is not None:
            head += f"authorization: Bearer {route.api_key}\r\n"
        base_path = route.base_path.rstrip("/")
        if any(not 0x20 < ord(char) < 0x7F for char in (route.api_key or "") + base_path + route.host):
            raise ValueError(f"endpoint {route.id}: its host, path or key holds a character no header can carry")
        self.route = route
        self.id = route.id
        self.base_path = base_path.encode("ascii")
        self.head = head.encode("ascii")
        self.retired = False

    def load(self, now: float) -> float:
        """Outstanding requests, and what is left of recent failures."""
        if not self._failure_load:
            return self.outstanding
        left = self._failure_load * math.pow(0.5, (now - self._failure_load_at) / FAILURE_HALF_LIFE_S)
        if left < _LOAD_FORGOTTEN:
            self._failure_load = left = 0.0
        return self.outstanding + left

    def available(self, now: float) -> bool:
        """False while the breaker is open, or half open with its one probe on the way."""
        return not self.open_until or (self.open_until <= now and not self.probing)

    def begin(self, now: float) -> bool:
        """A request is sent here. True when it is the probe of a half-open breaker."""
        self.outstanding += 1
        if self.open_until and self.open_until <= now and not self.probing:
            self.probing = True
            return True
        return False

    def end(self, probe: bool) -> bool:
        """A request is over, however it ended. True when the endpoint has none left."""
        self.outstanding -= 1
        if probe:
            self.probing = False
        return not self.outstanding

    def failed(self, now: float) -> None:
        """A connection failed, an answer never came, or it was a 5xx."""
        self._failure_load = self.load(now) - self.outstanding + FAILURE_LOAD
        self._failure_load_at = now
        self.failures += 1
        if self.open_until:
            if self.open_until <= now:
                self.open_s = min(self.open_s * 2, OPEN_S_MAX)
                self.open_until = now + self.open_s
        elif self.failures >= FAILURES_TO_OPEN:
            self.open_until = now + self.open_s

    def succeeded(self) -> None:
        """Body bytes of an answer that was no error came: the breaker closes."""
        if self.failures:
            self.failures = 0
            self.open_until = 0.0
            self.open_s = OPEN_S

    def answered(self) -> None:
        """A 4xx: never a failure, and proof enough for a breaker that is open."""
        if self.open_until:
            self.succeeded()


class Model:
    """A route of the table with its endpoints' states."""

    __slots__ = ("endpoints", "name", "route")

    def __init__(self, route: ModelRoute, endpoints: list[Endpoint]) -> None:
        self.route = route
        self.name = route.name
        self.endpoints = endpoints


def choose(
    endpoints: Iterable[Endpoint], now: float, tried: Collection[Endpoint], rand: Callable[[], float]
) -> Endpoint | None:
    """The endpoint with the least load, ties at random; None when all have been tried.

    Endpoints whose breaker is open are left out, unless all are: then the one that opens first is tried.
    """
    best: Endpoint | None = None
    best_load = 0.0
    ties = 0
    least_bad: Endpoint | None = None
    for endpoint in endpoints:
        if endpoint in tried:
            continue
        if endpoint.open_until and not endpoint.available(now):
            if least_bad is None or (endpoint.open_until, endpoint.load(now)) < (
                least_bad.open_until,
                least_bad.load(now),
            ):
                least_bad = endpoint
            continue
        load = endpoint.load(now)
        if best is None or load < best_load:
            best, best_load, ties = endpoint, load, 1
        elif load == best_load:
            ties += 1
            if rand() * ties < 1.0:
                best = endpoint
    return best if best is not None else least_bad


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

    def apply(self, snapshot: RouteTable) -> bool:
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
            endpoints = [found for found in (self._endpoint(route.name, e) for e in route.endpoints) if found]
            named.update(endpoints)
            models.append(Model(route, endpoints))
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

    def _endpoint(self, model: str, route: RouteEndpoint) -> Endpoint | None:
        key = (model, route.id, route.host, route.port, route.tls)
        try:
            endpoint = self._endpoints.get(key)
            if endpoint is None:
                endpoint = self._endpoints[key] = Endpoint(route, idle_limit_s=self._idle_limit_s)
            else:
                endpoint.update(route)
        except ValueError as error:
            self.problems.append(str(error))
            return None
        return endpoint

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
