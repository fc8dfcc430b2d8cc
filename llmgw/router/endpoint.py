"""What a router knows of one endpoint: where it is, what it has to do, what it can take, and how it fails.

Pure: time is an argument, in seconds of a monotonic clock. It merely carries its idle connections.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from llmgw.config.addresses import join_host_port
from llmgw.messages.routes import FIGURES_STALE_S, EndpointFigure, RouteEndpoint
from llmgw.router.breaker import Breaker

if TYPE_CHECKING:
    from llmgw.router.upstream import UpstreamConnection

# What a failure weighs against outstanding requests, and how fast that fades. Without it, an endpoint that
# fails at once always has the fewest outstanding and draws everything.
FAILURE_LOAD = 8.0
FAILURE_HALF_LIFE_S = 2.0
_LOAD_FORGOTTEN = 0.05
# A new engine compiles, fills its caches and grows its batches on its first requests: it gets its share slowly.
SLOW_START_S = 15.0
SLOW_START_LEAST = 0.1
UNKNOWN = -1.0


class Endpoint:
    """An endpoint of one model with what this router knows of it. Survives the replacement of tables.

    `head` is what stands before the request's own headers: Host and, when the engine has a key, Authorization;
    `asks` is what stands before a request's path, `told` the line with its id in answers.
    """

    __slots__ = (
        "_failure_load_at",
        "_workers",
        "alive",
        "asks",
        "breaker",
        "capacity",
        "concurrency",
        "failure_load",
        "head",
        "id",
        "idle",
        "idle_limit_s",
        "outstanding",
        "part",
        "retired",
        "route",
        "slow_since",
        "strain",
        "strain_until",
        "told",
        "unserved",
    )

    def __init__(self, route: RouteEndpoint, *, idle_limit_s: float, now: float = -math.inf) -> None:
        """`now` is when it starts to take its share; one that has been there for ever takes it whole."""
        self.outstanding = 0
        self.alive = False
        """It gave body bytes since telemetry was last sent; written on the hot path."""
        self.breaker = Breaker()
        self.capacity = 1.0
        """What it takes in proportion to the model's other endpoints, its route's weight included."""
        self.retired = False
        self.idle: list[UpstreamConnection] = []
        self.idle_limit_s = idle_limit_s
        self.slow_since: float | None = now
        """None once it takes its whole share: `weight` is its capacity then."""
        self.failure_load = 0.0
        """0 when there is none left: `load` is what is outstanding then. The hot path looks at both itself."""
        self._failure_load_at = 0.0
        self.unserved: dict[str, float] = {}
        """Paths that it was found not to serve, with when to believe that no longer."""
        self.strain = UNKNOWN
        """How loaded its engine says it is: requests that wait there, and tenths of its cache that are used."""
        self.strain_until = 0.0
        self._workers = 1
        self.part: int | None = None
        """What this router has of its concurrency; None: as much as each other."""
        self.route = route
        self.update(route, now)

    def update(self, route: RouteEndpoint, now: float) -> None:
        """Take what a newer table says. Raises ValueError when key or path could not stand in a header."""
        head = f"host: {join_host_port(route.host, route.port)}\r\n"
        if route.api_key is not None:
            head += f"authorization: Bearer {route.api_key}\r\n"
        base_path = route.base_path.rstrip("/")
        if any(not 0x20 < ord(char) < 0x7F for char in (route.api_key or "") + base_path + route.host):
            raise ValueError(f"endpoint {route.id}: its host, path or key holds a character no header can carry")
        if route.concurrency != self.route.concurrency:
            self.part = None  # it was a part of another limit
        self.route = route
        self.id = route.id
        self.told = b"x-llmgw-replica: %b\r\n" % route.id.encode()
        self.take_part(self._workers, self.part)
        self.asks = b"POST " + base_path.encode("ascii")
        self.head = head.encode("ascii")
        if self.retired:
            self.retired = False
            self.slow_since = now

    def take_part(self, workers: int, part: int | None) -> None:
        """This router is one of so many, and has this part of the endpoint's limit; None: an equal one.

        Equal parts never exceed the limit together, but for one request each where there are more routers.
        """
        self._workers = workers
        self.part = part
        limit = self.route.concurrency
        self.concurrency: float = math.inf
        if limit is not None:
            self.concurrency = max(1, limit // workers) if part is None else max(1, min(part, limit))

    # What it has to do.

    def load(self, now: float) -> float:
        """Outstanding requests, and what is left of recent failures."""
        if not self.failure_load:
            return self.outstanding
        left = self.failure_load * math.pow(0.5, (now - self._failure_load_at) / FAILURE_HALF_LIFE_S)
        if left < _LOAD_FORGOTTEN:
            self.failure_load = left = 0.0
        return self.outstanding + left

    def weight(self, now: float) -> float:
        """The share that it takes now: its capacity, less while it is new."""
        since = self.slow_since
        if since is None:
            return self.capacity
        part = (now - since) / SLOW_START_S
        if part >= 1.0:
            self.slow_since = None
            return self.capacity
        return self.capacity * max(SLOW_START_LEAST, part)

    def share(self, now: float) -> float:
        """What it counts for where requests are divided by weight alone: less while it is new or fails."""
        weight = self.weight(now)
        return weight / (1.0 + self.load(now) - self.outstanding) if self.failure_load else weight

    def failing(self, now: float) -> bool:
        """True for a while after a failure."""
        return bool(self.failure_load) and self.load(now) > self.outstanding

    def pressure(self, now: float) -> float:
        """How loaded one more request would leave it, for its weight."""
        if self.slow_since is None and not self.failure_load:
            return (self.outstanding + 1.0) / self.capacity
        return (self.load(now) + 1.0) / self.weight(now)

    def take_figure(self, figure: EndpointFigure | None, now: float) -> None:
        """What its engine says of its load; None when it says nothing, or has not lately.

        Of the cache whole tenths count: of two that are alike none shall draw everything for a percent.
        """
        if figure is None or (figure.waiting is None and figure.cache_used is None):
            self.strain = UNKNOWN
            return
        self.strain = (figure.waiting or 0) + min(9, int((figure.cache_used or 0.0) * 10)) / 10
        self.strain_until = now + FIGURES_STALE_S - figure.age_s

    def usable(self, now: float) -> bool:
        """True when it may be sent a request: its breaker allows it, and it has room for one."""
        breaker = self.breaker
        return (not breaker.open_until or breaker.available(now)) and self.outstanding < self.concurrency

    # What becomes of its requests.

    def begin(self, now: float) -> bool:
        """A request is sent here. True when it is the probe of a half-open breaker."""
        self.outstanding += 1
        breaker = self.breaker
        return bool(breaker.open_until) and breaker.begin(now)

    def end(self, probe: bool) -> bool:
        """A request is over; `probe` when it was one and told nothing. True when the endpoint has none left."""
        self.outstanding -= 1
        if probe:
            self.breaker.give_up()
        return not self.outstanding

    def failed(self, now: float, probe: bool) -> bool:
        """A connection failed, an answer never came, or it was a 5xx. True when that opens its breaker."""
        self.failure_load = self.load(now) - self.outstanding + FAILURE_LOAD
        self._failure_load_at = now
        return self.breaker.failed(now, probe)

    def succeeded(self, now: float) -> bool:
        """Body bytes of an answer that was no error came. True when that closes its breaker."""
        if not self.breaker.failures or not self.breaker.succeeded():
            return False
        self.slow_since = now
        return True

    def answered(self, now: float) -> bool:
        """A 4xx: never a failure, and proof enough for a breaker that is open. True when that closes it."""
        return bool(self.breaker.open_until) and self.succeeded(now)
