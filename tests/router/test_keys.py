"""Who a credential is, and what it may do: hostile ones, revoked ones, limits. No process, no clock."""

from __future__ import annotations

import hashlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.messages.routes import KeyDemand, KeyRoute, KeyShare, RouteTable, TableVersion
from llmgw.router.caller import ANYBODY
from llmgw.router.errors import ApiError
from llmgw.router.key_caller import KeyCaller
from llmgw.router.keys import CREDENTIAL_BYTES_MAX, Keys
from llmgw.router.request import Credentials, Request
from llmgw.router.request_reader import BodyBudget, RequestReader

KEY = b"llmgw-0123456789-" + b"s" * 43
OTHER = b"llmgw-aaaaaaaaaa-" + b"t" * 43


def route(key: bytes = KEY, id: str = "k1", **fields: object) -> KeyRoute:
    return KeyRoute(id=id, hash=hashlib.sha256(key).digest(), **fields)  # type: ignore[arg-type]


def table(*keys: KeyRoute, required: bool = True, number: int = 1) -> RouteTable:
    return RouteTable(version=TableVersion("e", number), keys=list(keys), keys_required=required)


def keys(*routes: KeyRoute, required: bool = True, workers: int = 1) -> Keys:
    made = Keys(workers)
    made.apply(table(*routes, required=required), time.monotonic())
    return made


def bearer(key: bytes) -> Credentials:
    return ((b"authorization", b"Bearer " + key),)


def refusal(made: Keys, credentials: Credentials) -> ApiError:
    with pytest.raises(ApiError) as refused:
        made.identify(credentials)
    return refused.value


@pytest.mark.parametrize(
    "credentials",
    [
        bearer(KEY),
        ((b"authorization", b"bearer   " + KEY + b" "),),
        ((b"x-api-key", KEY),),
        ((b"api-key", b" " + KEY),),
        ((b"x-api-key", KEY), (b"authorization", b"Bearer " + KEY)),
        ((b"authorization", b"Basic dXNlcjpwYXNz"), (b"x-api-key", KEY)),
        ((b"authorization", b"Bearer "), (b"api-key", KEY)),
    ],
)
def test_a_key_is_known_in_each_clients_way_of_sending_it(credentials: Credentials) -> None:
    assert keys(route(priority=3)).identify(credentials).id == "k1"


@pytest.mark.parametrize(
    ("credentials", "code"),
    [
        ((), "missing_api_key"),
        (((b"authorization", b""),), "missing_api_key"),
        (((b"authorization", b"Bearer"),), "missing_api_key"),
        (((b"authorization", b"Bearer \t "),), "missing_api_key"),
        (((b"authorization", KEY),), "missing_api_key"),
        (((b"authorization", b"Basic " + KEY),), "missing_api_key"),
        (((b"x-api-key", b""),), "missing_api_key"),
        (bearer(KEY + b"x"), "invalid_api_key"),
        (bearer(KEY[:-1]), "invalid_api_key"),
        (bearer(KEY.upper()), "invalid_api_key"),
        (bearer(KEY + b" " + KEY), "invalid_api_key"),
        (bearer(KEY * 1000), "invalid_api_key"),
        (bearer("llmgw-\u00fc\u4e2d".encode()), "invalid_api_key"),
        (bearer(b"\xff\x00\xfe" * 20), "invalid_api_key"),
        (bearer(hashlib.sha256(KEY).digest()), "invalid_api_key"),
        (bearer(hashlib.sha256(KEY).hexdigest().encode()), "invalid_api_key"),
        ((*bearer(KEY), (b"x-api-key", OTHER)), "ambiguous_api_key"),
        ((*bearer(KEY), *bearer(OTHER)), "ambiguous_api_key"),
        ((*bearer(OTHER), (b"api-key", KEY)), "ambiguous_api_key"),
    ],
)
def test_what_is_no_key_is_refused_and_never_repeated(credentials: Credentials, code: str) -> None:
    error = refusal(keys(route()), credentials)
    assert (error.status, error.type, error.code) == (401, "authentication_error", code)
    said = error.body() + b"".join(error.headers)
    assert all(value.split(b" ")[-1] not in said for _, value in credentials if len(value) > 20)


@given(
    st.lists(
        st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"api-key"]), st.binary(max_size=80)),
        max_size=4,
    )
)
def test_no_bytes_whatever_are_taken_for_a_key_or_break_the_look_up(
    credentials: list[tuple[bytes, bytes]],
) -> None:
    assert refusal(keys(route()), tuple(credentials)).status == 401


def test_what_is_longer_than_any_key_is_not_even_hashed() -> None:
    long = b"x" * (CREDENTIAL_BYTES_MAX + 1)
    assert refusal(keys(route(long)), bearer(long)).code == "invalid_api_key"
    just = b"x" * CREDENTIAL_BYTES_MAX
    assert keys(route(just)).identify(bearer(just)).id == "k1"


def test_without_keys_anybody_may_come_and_what_is_sent_is_not_read() -> None:
    assert keys(required=False).identify(()) is ANYBODY
    assert keys(route(), required=False).identify(bearer(KEY)) is ANYBODY


def test_a_gateway_without_a_single_key_says_how_one_is_made() -> None:
    for credentials in ((), bearer(KEY)):
        error = refusal(keys(), credentials)
        assert error.code == "no_api_keys"
        assert "llmgw ctl keys create NAME" in error.message


def test_an_expired_key_says_so_to_who_has_it_and_to_nobody_else() -> None:
    made = keys(route(expires_at_s=time.time() - 1), route(OTHER, "k2", expires_at_s=time.time() + 60))
    assert refusal(made, bearer(KEY)).code == "expired_api_key"
    assert made.identify(bearer(OTHER)).id == "k2"


def request(*lines: bytes, body: bytes = b"{}") -> bytes:
    return b"POST /v1/x HTTP/1.1\r\nhost: gw\r\n%bcontent-length: %d\r\n\r\n%b" % (
        b"".join(line + b"\r\n" for line in lines),
        len(body),
        body,
    )


def test_a_key_that_is_revoked_while_its_request_arrives_is_refused() -> None:
    made = keys(route(), route(OTHER, "k2"))
    reader = RequestReader(
        body_bytes_max=10**6, budget=BodyBudget(10**6), may_go_on=lambda: None, identify=made.identify
    )
    wire = request(b"authorization: Bearer " + KEY)
    reader.feed(wire[:-1])
    made.apply(table(route(OTHER, "k2"), number=2), time.monotonic())
    reader.feed(wire[-1:])
    (read,) = reader.queue
    assert isinstance(read, Request)
    with pytest.raises(ApiError, match="not known") as refused:
        made.caller(read)
    assert refused.value.code == "invalid_api_key"
    reader.feed(request(b"authorization: Bearer " + KEY))
    again = reader.queue[-1]
    assert isinstance(again, Request)
    assert again.refusal is not None, "what the connection proved before counts no more"


def test_a_connection_that_proved_itself_with_a_secret_that_its_key_has_no_more_is_refused() -> None:
    made = keys(route())
    reader = RequestReader(
        body_bytes_max=10**6, budget=BodyBudget(10**6), may_go_on=lambda: None, identify=made.identify
    )
    reader.feed(request(b"authorization: Bearer " + KEY))
    made.apply(table(route(OTHER), number=2), time.monotonic())
    for key in (KEY, OTHER):
        reader.feed(request(b"authorization: Bearer " + key))
    assert [item.refusal is None for item in reader.queue if isinstance(item, Request)] == [True, False, True]


def test_who_came_before_keys_were_asked_for_needs_one_when_the_request_is_whole() -> None:
    made = keys(required=False)
    reader = RequestReader(
        body_bytes_max=10**6, budget=BodyBudget(10**6), may_go_on=lambda: None, identify=made.identify
    )
    reader.feed(request())
    made.apply(table(route(), number=2), time.monotonic())
    (read,) = reader.queue
    assert isinstance(read, Request)
    with pytest.raises(ApiError, match="needs an API key"):
        made.caller(read)


def test_a_connection_hashes_its_key_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    made = keys(route(), route(OTHER, "k2"))

    def counted(data: bytes) -> object:
        hashed.append(data)
        return hashlib.sha256(data)

    monkeypatch.setattr("llmgw.router.keys.sha256", counted)
    reader = RequestReader(
        body_bytes_max=10**6, budget=BodyBudget(10**6), may_go_on=lambda: None, identify=made.identify
    )
    for key in (KEY, KEY, KEY, OTHER, OTHER):
        reader.feed(request(b"authorization: Bearer " + key))
    assert hashed == [KEY, OTHER]
    assert [item.caller.id for item in reader.queue if isinstance(item, Request)] == [
        "k1",
        "k1",
        "k1",
        "k2",
        "k2",
    ]


def test_a_strangers_body_is_read_and_not_kept() -> None:
    made = keys(route())
    budget = BodyBudget(10**9)
    reader = RequestReader(body_bytes_max=10**6, budget=budget, may_go_on=lambda: None, identify=made.identify)
    wire = request(b"authorization: Bearer wrong", body=b"x" * 500_000)
    for at in range(0, len(wire), 50_000):
        reader.feed(wire[at : at + 50_000])
        assert budget.held == 0
    reader.feed(request(b"x-api-key: " + KEY, body=b"mine"))
    stranger, known = reader.queue
    assert isinstance(stranger, Request)
    assert isinstance(known, Request)
    assert (stranger.body, known.body) == (b"", b"mine")
    assert budget.held == 4
    reader.release_body(known)
    assert budget.held == 0


def caller_of(**fields: object) -> KeyCaller:
    return KeyCaller(route(**fields), 1, time.monotonic())


def refused_with(caller: KeyCaller, model: str = "m") -> ApiError:
    with pytest.raises(ApiError) as refused:
        caller.begin(model, time.monotonic())
    return refused.value


def test_a_key_for_some_models_names_them_when_it_asks_for_another() -> None:
    caller = caller_of(models=["b", "a"])
    caller.begin("a", time.monotonic())
    error = refused_with(caller, "c")
    assert (error.status, error.type, error.code) == (403, "permission_error", "model_not_allowed")
    assert "it may use a, b" in error.message
    assert caller.running == 1


def test_each_limit_has_its_own_code_and_says_when_to_come_back() -> None:
    for fields, spend, code, least_s in (
        ({"requests_per_minute": 2}, 0, "requests_per_minute_exceeded", 1),
        ({"tokens_per_minute": 100}, 150, "tokens_per_minute_exceeded", 29),
        ({"concurrency": 2}, None, "concurrency_exceeded", 1),
    ):
        caller = caller_of(**fields)
        for _ in range(2):
            caller.begin("m", time.monotonic())
            if spend is not None:
                caller.ended(spend if spend else 0, time.monotonic())
                if spend:
                    break
        error = refused_with(caller)
        assert (error.status, error.type, error.code) == (429, "rate_limit_error", code)
        (wait,) = [line for line in error.headers if line.startswith(b"retry-after: ")]
        assert int(wait.split()[1]) >= least_s
    assert "2" in error.message


def test_answers_say_what_is_left_with_openais_names() -> None:
    caller = caller_of(requests_per_minute=10, tokens_per_minute=1000)
    lines = caller.begin("m", time.monotonic()).decode().split("\r\n")
    found = dict(line.split(": ") for line in lines if line)
    assert found["x-ratelimit-limit-requests"] == "10"
    assert found["x-ratelimit-remaining-requests"] == "9"
    assert found["x-ratelimit-reset-requests"].endswith("s")
    assert found["x-ratelimit-limit-tokens"] == found["x-ratelimit-remaining-tokens"] == "1000"
    assert caller_of(concurrency=1).begin("m", time.monotonic()) == b""


def test_a_refused_request_costs_nothing_and_runs_nothing() -> None:
    caller = caller_of(requests_per_minute=1, concurrency=5)
    caller.begin("m", time.monotonic())
    caller.ended(0, time.monotonic())
    for _ in range(5):
        refused_with(caller)
    assert caller.running == 0
    demand = caller.take_demand()
    assert demand is not None
    assert (demand.requests, demand.running) == (6, 0), "what was refused is what more is wanted for"
    demand = caller.take_demand()
    assert demand is not None
    assert demand.requests == 0
    assert demand.requests_left is not None, "told until it is whole again"
    assert caller_of(requests_per_minute=5).take_demand() is None


def test_a_limit_that_changes_leaves_what_runs_alone_and_holds_from_then_on() -> None:
    now = time.monotonic()
    made = keys(route())
    caller = made.identify(bearer(KEY))
    assert isinstance(caller, KeyCaller)
    caller.begin("m", time.monotonic())
    made.apply(table(route(concurrency=1, priority=9), number=2), now)
    assert made.identify(bearer(KEY)) is caller
    assert caller.priority == 9
    refused_with(caller)
    caller.ended(5, time.monotonic())
    caller.begin("m", time.monotonic())
    made.apply(table(route(), number=3), now)
    caller.begin("m", time.monotonic())
    assert caller.running == 2


def test_one_of_two_routers_has_half_until_it_is_told_its_part() -> None:
    made = keys(route(requests_per_minute=100, concurrency=8), workers=2)
    caller = made.identify(bearer(KEY))
    assert isinstance(caller, KeyCaller)
    for _ in range(4):
        caller.begin("m", time.monotonic())
    refused_with(caller)
    made.share(
        {"k1": KeyShare(requests_per_minute=87.5, requests_moved=30.0, concurrency=6)}, 2, time.monotonic()
    )
    for _ in range(2):
        caller.begin("m", time.monotonic())
    refused_with(caller)
    made.share({}, 2, time.monotonic())
    assert refused_with(caller).code == "concurrency_exceeded", "what it runs is more than its even part again"


def test_a_part_that_came_before_its_key_holds_for_it() -> None:
    made = Keys(2)
    made.share({"k1": KeyShare(concurrency=1)}, 2, 0.0)
    made.apply(table(route(concurrency=4)), time.monotonic())
    caller = made.identify(bearer(KEY))
    caller.begin("m", time.monotonic())
    with pytest.raises(ApiError):
        caller.begin("m", time.monotonic())


def test_of_many_keys_only_those_in_use_are_looked_at_for_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = keys(
        *(route(b"%d" % n, f"k{n}", requests_per_minute=60, concurrency=3) for n in range(100)), workers=2
    )
    assert made.take_demand() == {}
    looked: list[str] = []
    take_demand = KeyCaller.take_demand

    def noted(caller: KeyCaller) -> KeyDemand | None:
        looked.append(caller.id)
        return take_demand(caller)

    monkeypatch.setattr(KeyCaller, "take_demand", noted)
    caller = made.identify(bearer(b"7"))
    caller.begin("m", time.monotonic())
    for _ in range(3):
        assert made.take_demand()["k7"].running == 1
    assert looked == ["k7"] * 3
    caller.ended(0, time.monotonic())
    told = made.take_demand()["k7"]
    assert (told.running, told.requests_left is not None) == (0, True), "told until it is whole again"
    # A larger part is not full at first, a new limit may not be either, and both are told without a request.
    made.share({"k5": KeyShare(requests_per_minute=50.0)}, 2, time.monotonic())
    assert {*made.take_demand()} == {"k5", "k7"}
    made.apply(
        table(*(route(b"%d" % n, f"k{n}", requests_per_minute=60) for n in range(100) if n != 7), number=2),
        time.monotonic(),
    )
    assert {*made.take_demand()} == {"k5"}, "of a key that is gone nothing is told"
    caller.ended(0, time.monotonic())
    assert {*made.take_demand()} == {"k5"}


def test_a_part_that_is_told_again_counts_when_its_limit_or_the_control_process_is_another() -> None:
    now = time.monotonic()
    made = keys(route(requests_per_minute=100), workers=2)
    caller = made.identify(bearer(KEY))
    assert isinstance(caller, KeyCaller)

    def told(part: float, moved: float) -> tuple[float, float]:
        made.share({"k1": KeyShare(requests_per_minute=part, requests_moved=moved)}, 2, now)
        bucket = caller._requests
        assert bucket is not None
        return bucket.part, round(bucket.level(now))

    for _ in range(2):
        assert told(80, 10) == (80, 60), "what was moved comes once"
    for _ in range(30):
        caller.begin("m", time.monotonic())
    now = time.monotonic()
    made.apply(table(route(requests_per_minute=200), number=2), now)
    assert told(80, 10) == (80, 60), "of the new limit it is another part"
    made.begin_moves()
    assert told(80, 0) == (80, 60)
    assert told(80, 10) == (80, 70), "a new control process counts from 0"
    assert told(80, 10) == (80, 70)
    made.share({}, 3, now)
    made.share({}, 3, now)
    assert told(80, 10) == (80, 67)


def test_a_key_at_rest_is_told_again_when_its_part_grows_until_that_is_whole() -> None:
    keys = Keys(2)
    route = KeyRoute(id="k", hash=b"h", requests_per_minute=60)
    keys.apply(RouteTable(version=TableVersion("e", 1), keys=[route], keys_required=True), time.monotonic())
    assert keys.take_demand() == keys.take_demand() == {}
    keys.share({"k": KeyShare(requests_per_minute=45)}, 2, time.monotonic())
    assert keys.take_demand()["k"].requests_left == pytest.approx(30, abs=1)


def test_the_servers_own_key_is_known_and_does_not_count_as_one_that_somebody_has() -> None:
    own = route(OTHER, "(playground)", of_server=True)
    made = keys(own)
    assert made.identify(bearer(OTHER)).id == "(playground)"
    assert refusal(made, ()).code == refusal(made, bearer(KEY)).code == "no_api_keys"
    made = keys(own, route())
    assert (refusal(made, ()).code, refusal(made, bearer(b"x")).code) == ("missing_api_key", "invalid_api_key")
