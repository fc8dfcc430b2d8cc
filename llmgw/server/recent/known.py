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
        busy = hub.in_flight_of_models()
        return [
            hub.rates.rates(
                model.name,
                now,
                in_flight=busy.get(model.name, 0),
                queued=hub.queued_of(model.name),
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
