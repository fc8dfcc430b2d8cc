"""What each router has of the limits that are for all routers together, in one message each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from llmgw.messages.routes import Hello, RouterShare, RouteTable, Telemetry
from llmgw.server.divided_limits import DividedLimits, Parts


class RouterShares:
    """Fed with what routers say; `due` is asked twice a second for what they are to be told."""

    def __init__(self, workers: int) -> None:
        """`workers`: so many routers share what is shared equally; 0: as each was told at its start."""
        self._workers = workers
        self._endpoints = DividedLimits()
        self._limits: dict[str, int] = {}
        """Concurrency by endpoint id."""
        self._of_model: dict[str, list[str]] = {}
        """Ids of its endpoints that have a limit, by model."""
        self._number = 0
        self._sent: dict[str, int] = {}
        """The number of the last share, by router."""

    def publish(self, table: RouteTable) -> None:
        """The table that routers have by the time at which they hear of their next share."""
        self._limits = {}
        self._of_model = {}
        for model in table.models:
            limited = {each.id: each.concurrency for each in model.endpoints if each.concurrency is not None}
            self._limits.update(limited)
            self._of_model[model.name] = list(limited)

    def joined(self, router: str, hello: Hello) -> None:
        """A router has greeted."""
        self._sent[router] = 0
        self._endpoints.joined(router, Parts(max(1, hello.workers), hello.parts))

    def left(self, router: str) -> None:
        """Its process has ended."""
        self._sent.pop(router, None)
        self._endpoints.left(router)

    def heard(self, router: str, telemetry: Telemetry) -> None:
        """Take what it has running and waiting."""
        sent = self._sent.get(router)
        if sent is not None:
            waiting = self._waiting(telemetry.queued) if telemetry.queued else {}
            acked = telemetry.share == sent and sent > 0
            self._endpoints.used(router, telemetry.in_flight, waiting, acked=acked)

    def due(self, also: Iterable[str] = ()) -> dict[str, RouterShare]:
        """What to tell which routers now, without `keys`; those of `also` hear again what they go by already."""
        parts = self._endpoints.divide(self._limits, self._workers)
        shares: dict[str, RouterShare] = {}
        for router, mine in parts.items():
            self._number += 1
            self._sent[router] = self._number
            shares[router] = RouterShare(workers=self._workers, number=self._number, endpoints=dict(mine.own))
        for router in also:
            if router in self._sent and router not in shares:
                mine = self._endpoints.sent(router)
                number = self._sent[router]
                shares[router] = RouterShare(workers=mine.workers, number=number, endpoints=dict(mine.own))
        return shares

    def _waiting(self, queued: Mapping[str, int]) -> dict[str, float]:
        """What waits for a model waits for each of its endpoints, a part of it."""
        waiting: dict[str, float] = {}
        for model, count in queued.items():
            limited = self._of_model.get(model, ())
            for endpoint in limited:
                waiting[endpoint] = waiting.get(endpoint, 0.0) + count / len(limited)
        return waiting
