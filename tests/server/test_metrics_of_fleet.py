"""The metrics of a fleet that has everything: hardware, downloads, endpoints, streams; told in base units."""

from __future__ import annotations

import pytest

from llmgw.config.catalog import Catalog
from llmgw.fleet.events import Event
from llmgw.fleet.model import Replica, ReplicaState, Shard
from llmgw.messages.agent import Gpu, Port, Progress, ShardSpec
from llmgw.messages.routes import Outcome, Telemetry
from llmgw.metrics.ports import COUNTERS
from llmgw.server.call_tally import CODES_MAX, CallTally
from llmgw.server.catalogs import static_endpoints
from llmgw.server.mailbox import Mailbox
from llmgw.server.request_tally import ENDPOINTS_MAX, RequestTally
from llmgw.server.transition_tally import EVENTS_MAX, TransitionTally
from tests.server.exposition import families, value
from tests.server.test_metrics import World

GPU = Gpu(
    index=3,
    uuid="GPU-3",
    name="NVIDIA H100",
    memory_total_mib=81559,
    memory_used_mib=1024,
    utilization_percent=87,
    temperature_c=61,
    power_w=612.3,
    power_limit_w=700.0,
    corrected_ecc=5,
    uncorrected_ecc=0,
    throttled=["power"],
    xids={63: 1, 31: 4},
    driver_version="580.65.06",
)


def test_a_gpu_is_told_in_base_units() -> None:
    world = World()
    world.register("node01", gpus=[GPU])
    text, at = world.text(), {"node": "node01", "gpu": "3"}
    assert value(text, "llmgw_gpu_memory_used_bytes", **at) == 2**30
    assert value(text, "llmgw_gpu_memory_total_bytes", **at) == 81559 * 2**20
    assert value(text, "llmgw_gpu_utilization_ratio", **at) == 0.87
    assert value(text, "llmgw_gpu_temperature_celsius", **at) == 61
    assert value(text, "llmgw_gpu_power_watts", **at) == 612.3
    assert value(text, "llmgw_gpu_power_limit_watts", **at) == 700
    assert value(text, "llmgw_gpu_ecc_errors_total", **at, kind="corrected") == 5
    assert value(text, "llmgw_gpu_ecc_errors_total", **at, kind="uncorrected") == 0
    assert value(text, "llmgw_gpu_xid_errors_total", **at, xid="31") == 4
    throttled = {each: value(text, "llmgw_gpu_throttled", **at, reason=each) for each in ("power", "thermal")}
    assert throttled == {"power": 1, "thermal": 0}
    assert value(text, "llmgw_gpu_info", **at, uuid="GPU-3", name="NVIDIA H100", driver="580.65.06") == 1


def test_what_a_gpu_does_not_tell_is_absent_and_not_0() -> None:
    world = World()
    world.register("node01", gpus=[Gpu(index=0, uuid="GPU-0", name="x")])
    told = {family.name for family in families(world.text()).values() if family.samples}
    assert {name for name in told if name.startswith("llmgw_gpu_")} == {"llmgw_gpu_info", "llmgw_gpu_usable"}


def test_numbers_that_cannot_be_meant_cost_no_scrape() -> None:
    world = World()
    huge = 10**400
    world.register(
        "node01",
        gpus=[
            Gpu(index=0, uuid="G", name="x", utilization_percent=huge, memory_used_mib=huge, temperature_c=-huge)
        ],
        ports=[
            Port(
                adapter="mlx5_0",
                port=1,
                rate_gbps=float("nan"),
                counters={"link_downed": huge, "symbol_error": -1},
            )
        ],
    )
    told = {family.name for family in families(world.text()).values() if family.samples}
    assert "llmgw_ib_port_active" in told
    left_out = {"llmgw_gpu_utilization_ratio", "llmgw_gpu_memory_used_bytes", "llmgw_gpu_temperature_celsius"}
    assert not told & (left_out | {"llmgw_ib_port_rate_gbps", "llmgw_ib_port_counter"})


def test_counters_of_a_port_are_those_that_are_known_whatever_an_agent_says() -> None:
    world = World()
    counters = {"link_downed": 3, "symbol_error": None, "made_up": 7} | dict.fromkeys(map(str, range(50)), 1)
    world.register("node01", ports=[Port(adapter="mlx5_0", port=1, counters=counters)])
    text, at = world.text(), {"node": "node01", "adapter": "mlx5_0", "port": "1"}
    assert value(text, "llmgw_ib_port_counter_total", **at, counter="link_downed") == 3
    assert len(families(text)["llmgw_ib_port_counter"].samples) == 1
    assert len(set(COUNTERS)) == len(COUNTERS)


def test_labels_that_are_equal_once_they_are_cut_are_one_series() -> None:
    world = World()
    world.register("node01", ports=[Port(adapter="x" * 200 + end, port=1, rate_gbps=400.0) for end in "ab"])
    assert len(families(world.text())["llmgw_ib_port_rate_gbps"].samples) == 1  # `text` has them linted


def test_streams_tell_the_time_to_their_first_token_and_between_tokens() -> None:
    world = World("m")

    def outcome(**changes: object) -> Outcome:
        fields = {"status": 200, "stream": True, "first_byte_s": 0.5, "total_s": 2.5, "completion_tokens": 101}
        return Outcome(**{"model": "m", "endpoint": "m-1", **fields, **changes})  # type: ignore[arg-type]

    good = outcome()
    left_out = [
        outcome(stream=False),
        outcome(status=499),
        outcome(estimated=True),
        outcome(completion_tokens=1),
        outcome(completion_tokens=None),
        outcome(first_byte_s=None, completion_tokens=None),
    ]
    world.hub.telemetry("r1", Telemetry(outcomes=[good, *left_out]))
    text = world.text()
    assert value(text, "llmgw_time_to_first_token_seconds_count", model="m") == 4
    assert value(text, "llmgw_time_to_first_token_seconds_sum", model="m") == 2.0
    assert value(text, "llmgw_time_per_output_token_seconds_count", model="m") == 1
    assert value(text, "llmgw_time_per_output_token_seconds_sum", model="m") == pytest.approx(0.02)
    assert value(text, "llmgw_time_per_output_token_seconds_bucket", model="m", le="0.02") == 1
    assert value(text, "llmgw_request_first_byte_seconds_count", model="m") == 6


def test_an_endpoint_has_its_requests_its_load_and_its_breaker_until_it_is_gone() -> None:
    world = World()
    catalog = Catalog.model_validate({"models": [{"name": "m", "endpoints": [{"url": "http://10.0.0.1:8000"}]}]})
    applied = Event("catalog", "revision 2", "applied", "test")
    world.hub.set_catalog(catalog, static_endpoints(catalog, None), applied)
    world.hub.release_routes()
    world.hub.turn()
    at = {"model": "m", "endpoint": "static:m:0"}
    assert value(world.text(), "llmgw_endpoint_breaker_state", **at, state="closed") == 1
    outcomes = [Outcome(model="m", endpoint="static:m:0", status=status) for status in (200, 200, 502)]
    world.hub.telemetry("r1", Telemetry(outcomes=outcomes, in_flight={"static:m:0": 3}))
    world.hub.telemetry("r2", Telemetry(in_flight={"static:m:0": 2}, breakers={"static:m:0": "open"}))
    world.hub.telemetry("r3", Telemetry(breakers={"static:m:0": "half_open"}))
    text = world.text()
    assert value(text, "llmgw_endpoints", model="m") == 1
    assert value(text, "llmgw_endpoint_requests_total", **at, status_class="2xx") == 2
    assert value(text, "llmgw_endpoint_requests_total", **at, status_class="5xx") == 1
    assert value(text, "llmgw_endpoint_in_flight", **at) == 5
    breaker = {
        s: value(text, "llmgw_endpoint_breaker_state", **at, state=s) for s in ("closed", "half_open", "open")
    }
    assert breaker == {"closed": 0, "half_open": 0, "open": 1}
    world.hub.set_catalog(Catalog(), {}, applied)
    world.hub.turn()
    assert "static:m:0" not in world.text()


def test_endpoints_that_nobody_scrapes_are_bounded_too() -> None:
    tally = RequestTally()
    many = [Outcome(model="m", endpoint=f"m-{number}", status=200) for number in range(ENDPOINTS_MAX + 10)]
    tally.take(many, 0, {"m"})
    assert len(tally.endpoints) == ENDPOINTS_MAX
    assert ("m", "m-0") not in tally.endpoints


def fetching(done: int | None) -> Shard:
    spec = ShardSpec(
        shard_id=f"m-{done}.0",
        replica_id="m-1",
        model="m",
        profile="p",
        profile_hash="h",
        served_names=["m"],
        engine="sim",
    )
    progress = Progress(what="m.gguf", done_bytes=done, total_bytes=1000, rate_bytes_s=50.5)
    return Shard(spec=spec, node_id="node01", phase="fetching", progress=progress)


def test_a_download_that_several_shards_wait_for_is_told_once() -> None:
    world = World("m")
    for number, done in enumerate((10, 400, None)):
        world.hub.fleet.replicas[f"m-{number}"] = Replica(
            replica_id=f"m-{number}",
            model="m",
            profile="default",
            profile_hash="h",
            nodes=1,
            engine="sim",
            state=ReplicaState.STARTING,
            since=0.0,
            created_at=0.0,
            shards={0: fetching(done)},
        )
    text, at = world.text(), {"node": "node01", "model": "m"}
    assert value(text, "llmgw_download_done_bytes", **at) == 400
    assert value(text, "llmgw_download_size_bytes", **at) == 1000
    assert value(text, "llmgw_download_rate_bytes_per_second", **at) == 50.5
    assert value(text, "llmgw_replicas", model="m", profile="default", state="starting") == 3


def test_what_happens_is_counted_and_starts_are_timed_from_placement_to_the_first_answer() -> None:
    tally = TransitionTally()

    def replica(event: str, at: float, name: str = "m-1") -> None:
        tally.take([Event("replica", name, event, model="m")], at)

    replica("starting", 10.0)
    replica("ready", 52.0)
    replica("failed", 60.0)
    replica("starting", 61.0, "m-2")
    replica("failed", 62.0, "m-2")
    replica("ready", 70.0, "m-2")  # what failed was no start
    replica("adopted", 70.0, "m-3")
    replica("ready", 71.0, "m-3")  # placed by another server
    tally.keep(["m", "n"])
    assert (tally.starts["m"].count, tally.starts["m"].total_s) == (1, 42.0)
    assert tally.failures == {"m": 2, "n": 0}
    assert tally.counts["replica", "failed"] == 2
    tally.take([Event(f"kind {number}", "x", "y") for number in range(1000)], 80.0)
    assert len(tally.counts) == EVENTS_MAX + 1
    assert sum(tally.counts.values()) == 1008


def test_an_operators_deed_and_a_turn_are_seen_in_a_scrape() -> None:
    world = World()
    session = world.register("node01")
    world.hub.set_cordon("node01", True, "test")
    world.hub.turn()
    text = world.text()
    assert value(text, "llmgw_transitions_total", kind="node", event="cordoned") == 1
    assert value(text, "llmgw_node_cordoned", node="node01") == 1
    assert value(text, "llmgw_node_state", node="node01", state="ready") == 1
    assert value(text, "llmgw_node_state", node="node01", state="lost") == 0
    assert value(text, "llmgw_node_info", node="node01", version="1") == 1
    assert value(text, "llmgw_node_silence_seconds", node="node01") == 0
    assert value(text, "llmgw_turn_seconds_count") == 1
    assert value(text, "llmgw_agent_sessions") == 1
    assert world.hub.node_of(session) == "node01"


def test_a_command_is_timed_until_it_is_acknowledged() -> None:
    now = [10.0]
    mailbox = Mailbox("s", lambda: now[0])
    mailbox.stop("m-1.0", "test")
    now[0] = 11.0
    mailbox.stop("m-2.0", "test")
    now[0] = 13.0
    assert mailbox.acknowledge(1) == [3.0]
    assert mailbox.acknowledge(1) == []
    assert mailbox.acknowledge(99) == [2.0]


def test_codes_of_refusals_are_bounded() -> None:
    tally = CallTally()
    for number in range(CODES_MAX + 10):
        tally.answered("poll", 0.1, f"code-{number}")
    assert len(tally.refusals) == CODES_MAX + 1
    assert tally.seconds["poll"].count == CODES_MAX + 10
