"""What is known of the last requests, as the admin API and the pages ask for it."""

from __future__ import annotations

from collections.abc import Callable

from llmgw.messages.recent_views import ModelRates, ModelSeries, RequestView
from llmgw.server.hub import Hub


class RecentKnown:
    """`AdminRecent` over a hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def rates(self) -> list[ModelRates]:
        """Every model of the catalog, in its order."""
        hub, now = self._hub, self._hub.clock.monotonic()
        in_flight: dict[str, int] = {}
        for router in hub.fleet.routers.values():
            for endpoint, count in router.in_flight.items():
                in_flight[endpoint] = in_flight.get(endpoint, 0) + count
        model_of = {each.replica_id: each.model for each in hub.fleet.replicas.values()}
        for name, endpoints in hub.static.items():
            model_of.update((each.id, name) for each in endpoints)
        busy: dict[str, int] = {}
        for endpoint, count in in_flight.items():
            if endpoint in model_of:
                busy[model_of[endpoint]] = busy.get(model_of[endpoint], 0) + count
        return [
            hub.rates.rates(
                model.name,
                now,
                in_flight=busy.get(model.name, 0),
                queued=sum(queued.get(model.name, 0) for queued in hub.queued.values()),
            )
            for model in hub.catalog.models
        ]

    def series(self, model: str) -> ModelSeries:
        """One model's last hour."""
        clock = self._hub.clock
        return self._hub.rates.series(model, clock.monotonic(), clock.wall())

    def requests(
        self, *, before: int | None, limit: int, fits: Callable[[RequestView], bool] = lambda view: True
    ) -> list[RequestView]:
        """The newest first."""
        return self._hub.recent.views(before=before, limit=limit, fits=fits)
