"""What routers are told of the limits that are for all of them, from what they say."""

from __future__ import annotations

from llmgw.messages.routes import (
    Hello,
    ModelRoute,
    RouteEndpoint,
    RouterShare,
    RouteTable,
    TableVersion,
    Telemetry,
)
from llmgw.server.router_shares import RouterShares


def table(number: int, **limits: int | None) -> RouteTable:
    endpoints = [
        RouteEndpoint(id=name, host="127.0.0.1", port=1, concurrency=limit) for name, limit in limits.items()
    ]
    return RouteTable(version=TableVersion("e", number), models=[ModelRoute(name="m", endpoints=endpoints)])


def hello(**fields: object) -> Hello:
    return Hello(router_id="r", pid=1, software_version="1", listen="127.0.0.1:1", **fields)  # type: ignore[arg-type]


def two(workers: int = 2, *, started_as: int = 2) -> RouterShares:
    shares = RouterShares(workers)
    for name in ("a", "b"):
        shares.joined(name, hello(workers=started_as))
    return shares


def test_routers_that_were_started_as_they_are_hear_nothing() -> None:
    shares = two()
    shares.publish(table(1, e=64))
    assert shares.due() == {}


def test_a_router_that_was_started_as_one_of_another_number_hears_so_once() -> None:
    shares = two(started_as=4)
    due = shares.due()
    assert {name: share.workers for name, share in due.items()} == {"a": 2, "b": 2}
    assert shares.due() == {}, "until it has acknowledged that"
    for name, share in due.items():
        shares.heard(name, Telemetry(share=share.number))
    assert shares.due() == {}


def test_units_keep_what_they_were_told_when_they_were_started() -> None:
    shares = two(0, started_as=3)
    shares.publish(table(1, e=60))
    assert shares.due() == {}
    shares.heard("a", Telemetry(in_flight={"e": 20}, queued={"m": 50}))
    assert shares.due().keys() == {"b"}
    shares.heard("b", Telemetry(share=1))
    due = shares.due()
    assert due["a"].workers == 0
    assert due["a"].endpoints == {"e": 53}


def test_what_waits_for_a_model_waits_for_all_its_endpoints_that_have_a_limit() -> None:
    shares = two()
    shares.publish(table(1, e=64, f=32, free=None))
    shares.heard("a", Telemetry(in_flight={"e": 32, "f": 16}, queued={"m": 400}))
    shares.heard("b", Telemetry(in_flight={"e": 1}))
    due = shares.due()
    assert set(due) == {"b"}, "what one has is taken before the other gets it"
    assert due["b"].endpoints == {"e": 8, "f": 4}
    shares.heard("b", Telemetry(in_flight={"e": 1}, share=due["b"].number))
    assert shares.due()["a"].endpoints == {"e": 56, "f": 28}


def test_a_number_of_another_server_is_no_acknowledgement() -> None:
    shares = two()
    shares.publish(table(1, e=64))
    shares.heard("a", Telemetry(in_flight={"e": 32}, queued={"m": 99}))
    (share,) = shares.due().values()
    shares.heard("b", Telemetry(share=share.number + 1))
    assert shares.due() == {}


def test_a_limit_that_changes_is_divided_anew() -> None:
    shares = two()
    shares.publish(table(1, e=64))
    shares.heard("a", Telemetry(in_flight={"e": 32}, queued={"m": 99}))
    taken = shares.due()["b"]
    shares.heard("b", Telemetry(share=taken.number))
    given = shares.due()["a"]
    assert given.endpoints == {"e": 56}
    shares.publish(table(2, e=16))
    shares.heard("a", Telemetry(in_flight={"e": 3}, share=given.number))
    assert shares.due() == {}, "each has forgotten its part with the old limit, and eight is enough"


def test_a_router_that_has_ended_has_nothing() -> None:
    shares = two()
    shares.publish(table(1, e=64))
    shares.left("b")
    shares.heard("a", Telemetry(in_flight={"e": 32}, queued={"m": 99}))
    assert shares.due() == {"a": RouterShare(workers=2, number=1, endpoints={"e": 64})}


def test_who_has_to_hear_of_something_else_hears_again_what_it_goes_by() -> None:
    # A share is one message: without its parts in it, a change of a key's limit would take them away.
    shares = RouterShares(2)
    shares.joined("a", hello(workers=2, parts={"e": 53}))
    shares.publish(table(1, e=60))
    due = shares.due(["a", "gone"])
    assert due == {"a": RouterShare(workers=2, number=0, endpoints={"e": 53})}
    assert shares.due() == {}, "that was no new part, which would have to be acknowledged"
