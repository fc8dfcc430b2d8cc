"""What routers tell the hub of requests, as API and pages ask for it."""

from __future__ import annotations

import msgspec

from llmgw.config.load import catalog_of
from llmgw.messages.routes import Outcome, RouteEndpoint, Telemetry
from llmgw.server.recent.known import RecentKnown
from tests.server.test_news import hub_of


def test_what_routers_tell_of_requests_is_known_by_model_and_one_by_one() -> None:
    hub = hub_of()
    hub.catalog = catalog_of(
        [
            {"name": "m", "endpoints": [{"url": "http://10.0.0.9:8000"}]},
            {"name": "idle", "profiles": [{"engine": "sim"}]},
        ]
    )
    hub.static = {"m": [RouteEndpoint(id="static:m:0", host="10.0.0.9", port=8000)]}
    recent = RecentKnown(hub)
    ended = Outcome("m", "static:m:0", 200, first_byte_s=0.5, total_s=1.0, completion_tokens=7)
    first = Telemetry(outcomes=[ended], in_flight={"static:m:0": 2}, queued={"m": 1})
    hub.telemetry("router-0", first)
    hub.telemetry("router-1", msgspec.structs.replace(first, outcomes=[]))
    busy, idle = recent.rates()
    assert (busy.model, busy.in_flight, busy.queued) == ("m", 4, 2), "of both routers"
    assert busy.requests_per_s > 0
    assert busy.tokens_per_s == 7 * busy.requests_per_s
    assert (idle.model, idle.requests_per_s, idle.in_flight) == ("idle", 0, 0)
    assert sum(point.requests for point in recent.series("m").points) == 1
    told = recent.requests(before=None, limit=10)
    assert [(each.model, each.endpoint, each.at) for each in told] == [("m", "static:m:0", 1_900_000_000.0)]
