"""The server's metrics follow the hub's state, keep to Prometheus' rules, and are bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from llmgw.config.catalog import Catalog
from llmgw.fleet.events import Event
from llmgw.fleet.observe import Enrolment
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.agent import FabricOffer, Gpu, Inventory, Port, Register
from llmgw.messages.findings import Finding
from llmgw.messages.routes import Outcome, Telemetry
from llmgw.metrics.family import OTHER
from llmgw.metrics.findings import CHECKS_MAX
from llmgw.metrics.ports import COUNTERS
from llmgw.pki.expiry import CertificateEnd
from llmgw.server.catalogs import static_endpoints
from llmgw.server.hub import Clock, Hub
from llmgw.server.ids import RandomIds
from llmgw.server.metrics.exposition import FAMILIES, Metrics
from llmgw.server.metrics.source import Source
from llmgw.server.router_worker import RouterView
from tests.server.exposition import families, lint, value

NOW = 1_900_000_000.0


class Forgetful:
    """A memory that keeps nothing."""

    def record(self, *_: Any) -> None: ...

    def node_registered(self, *_: Any) -> None: ...

    def fabrics_changed(self, *_: Any) -> None: ...

    async def stored(self, timeout_s: float) -> bool:
        return True


class World:
    """A hub, and the text of its metrics."""

    def __init__(self, *models: str) -> None:
        self.findings: list[Finding] = []
        self.certificates: list[CertificateEnd] = []
        self.hub = Hub(
            epoch="e1",
            catalog=self.catalog(*models),
            settings=FleetSettings(),
            clock=Clock(monotonic=lambda: 1000.0, wall=lambda: NOW),
            ids=RandomIds(),
            memory=Forgetful(),
            publish=lambda table: None,
        )
        self.metrics = Metrics(Source(self.hub, lambda: self.certificates, lambda: self.findings))

    @staticmethod
    def catalog(*models: str) -> Catalog:
        profiles = [{"engine": "sim", "gpus_per_node": 1, "replicas": 2}]
        return Catalog.model_validate({"models": [{"name": name, "profiles": profiles} for name in models]})

    def register(self, node: str, *, features: Sequence[str] = (), **inventory: Any) -> str:
        message = Register(
            node_id=node,
            boot_id="b",
            instance="i",
            instance_started_at=1.0,
            counter=1,
            version="1",
            features=list(features),
            inventory=Inventory(**inventory),
        )
        return self.hub.register(message, Enrolment("10.0.0.1", NOW + 3600), "1").session

    def text(self) -> str:
        text = asyncio.run(self.metrics.text()).decode()
        assert lint(text) == []
        return text


def gpus(count: int) -> list[Gpu]:
    return [Gpu(index=n, uuid=f"GPU-{n}", name="x", usable=n != 0) for n in range(count)]


def test_each_router_has_its_series() -> None:
    world = World("m")
    views = [
        RouterView(
            name="router-0", pid="7", state="serving", requests=12, in_flight=3, spans_sent=5, spans_dropped=2
        ),
        RouterView(name="router-4", pid="9", state="finishing"),
    ]
    metrics = Metrics(Source(world.hub, list, list, routers=lambda: views))
    text = asyncio.run(metrics.text()).decode()
    assert lint(text) == []
    assert value(text, "llmgw_router_requests_total", router="router-0") == 12
    assert value(text, "llmgw_router_in_flight", router="router-0") == 3
    assert value(text, "llmgw_router_spans_total", router="router-0", state="sent") == 5
    assert value(text, "llmgw_router_spans_total", router="router-0", state="dropped") == 2
    assert value(text, "llmgw_router_state", router="router-0", state="serving") == 1
    assert value(text, "llmgw_router_state", router="router-4", state="serving") == 0
    assert value(text, "llmgw_router_state", router="router-4", state="finishing") == 1


def test_an_empty_server_has_every_family_and_keeps_to_the_rules() -> None:
    names = {family.name.removesuffix("_total") for family in FAMILIES}
    assert set(families(World().text())) == names


def test_nodes_gpus_and_ports_are_told_as_the_agents_told_them() -> None:
    world = World()
    world.register(
        "node01",
        gpus=gpus(8),
        ports=[
            Port(adapter="mlx5_0", port=1, state="ACTIVE", phys_state="LinkUp", rate_gbps=400.0),
            Port(adapter="mlx5_1", port=1, state="DOWN", phys_state="Polling"),
            Port(adapter="mlx5_2", port=1, state="ACTIVE_DEFER", phys_state="LinkErrorRecovery"),
        ],
        fabrics=[FabricOffer(name="ib-a", usable=True)],
    )
    text = world.text()
    assert value(text, "llmgw_nodes", state="ready") == 1
    assert value(text, "llmgw_nodes", state="lost") == 0
    assert value(text, "llmgw_gpus", node="node01", state="free") == 7
    assert value(text, "llmgw_gpus", node="node01", state="unusable") == 1
    up = {"node": "node01", "adapter": "mlx5_0", "port": "1"}
    down = up | {"adapter": "mlx5_1"}
    assert value(text, "llmgw_ib_port_active", **up, state="ACTIVE", phys_state="LinkUp") == 1
    assert value(text, "llmgw_ib_port_active", **down, state="DOWN", phys_state="Polling") == 0
    recovers = up | {"adapter": "mlx5_2", "state": "ACTIVE_DEFER", "phys_state": "LinkErrorRecovery"}
    assert value(text, "llmgw_ib_port_active", **recovers) == 1, "it carries traffic all the while"
    assert value(text, "llmgw_ib_port_rate_gbps", **up) == 400
    assert value(text, "llmgw_ib_port_rate_gbps", **down) is None


def test_no_nvlinks_and_unknown_ones_are_told_apart() -> None:
    world = World()
    joined = [Gpu(index=n, uuid=f"GPU-{n}", name="x", paths={1 - n: "NV4", 2: "SYS"}) for n in range(2)]
    alone = Gpu(index=2, uuid="GPU-2", name="x", paths={0: "SYS", 1: "SYS"})
    world.register("node01", gpus=[*joined, alone])
    world.register("node02", gpus=gpus(1))
    text = world.text()
    peers = {index: value(text, "llmgw_gpu_nvlink_peers", node="node01", gpu=index) for index in "012"}
    assert peers == {"0": 1, "1": 1, "2": 0}
    assert value(text, "llmgw_gpu_nvlink_peers", node="node02", gpu="0") is None


def test_certificates_count_down_and_a_renewed_one_is_taken_up_in_the_midst_of_a_session() -> None:
    world = World()
    session = world.register("node01")
    world.certificates = [CertificateEnd("gw.lan", "server", NOW - 5)]
    text = world.text()
    assert value(text, "llmgw_certificate_seconds_left", name="gw.lan", kind="server") == -5
    assert value(text, "llmgw_certificate_seconds_left", name="node01", kind="node") == 3600
    world.hub.certificate_shown(world.hub.node_of(session), NOW + 9000)
    assert value(world.text(), "llmgw_certificate_seconds_left", name="node01", kind="node") == 9000


def test_requests_are_counted_by_model_and_status_and_timed() -> None:
    world = World("org/m")
    outcomes = [
        Outcome(model="org/m", endpoint="m-1", status=200, retries=1, first_byte_s=0.3, total_s=2.0),
        Outcome(model="", endpoint=None, status=404, error="model_not_found"),
        Outcome(model="org/m", endpoint=None, status=502, retry_refused=True),
    ]
    world.hub.telemetry("r1", Telemetry(outcomes=outcomes, dropped=2))
    text = world.text()
    assert value(text, "llmgw_requests_total", model="org/m", status_class="2xx") == 1
    assert value(text, "llmgw_requests_total", model=OTHER, status_class="4xx") == 1
    assert value(text, "llmgw_retries_total", model="org/m") == 1
    assert value(text, "llmgw_retries_refused_total", model="org/m") == 1
    assert value(text, "llmgw_router_outcomes_dropped_total") == 2
    assert value(text, "llmgw_request_first_byte_seconds_bucket", model="org/m", le="0.25") == 0
    assert value(text, "llmgw_request_first_byte_seconds_bucket", model="org/m", le="0.5") == 1
    assert value(text, "llmgw_request_seconds_sum", model="org/m") == 2.0
    assert value(text, "llmgw_request_seconds_count", model="org/m") == 2
    assert value(text, "llmgw_request_seconds_count", model=OTHER) == 0


def test_what_waits_is_counted_over_all_routers_and_how_long_it_did() -> None:
    world = World("m", "n")
    waited = [Outcome(model="m", endpoint="m-1", status=200, queued_s=waited_s) for waited_s in (0.2, 3.0, 0.0)]
    world.hub.telemetry("r1", Telemetry(queued={"m": 3, "gone": 1}, outcomes=waited))
    world.hub.telemetry("r2", Telemetry(queued={"m": 4}))
    text = world.text()
    assert value(text, "llmgw_queue_requests", model="m") == 7
    assert value(text, "llmgw_queue_requests", model="n") == 0
    assert value(text, "llmgw_queue_wait_seconds_count", model="m") == 2
    assert value(text, "llmgw_queue_wait_seconds_sum", model="m") == 3.2
    world.hub.router_gone("r1")
    assert value(world.text(), "llmgw_queue_requests", model="m") == 4


def test_breakers_are_counted_once_however_many_routers_see_them_and_while_they_are_there() -> None:
    world = World()
    endpoints = [{"url": f"http://10.0.0.{number}:8000"} for number in range(3)]
    catalog = Catalog.model_validate({"models": [{"name": "m", "endpoints": endpoints}]})
    world.hub.set_catalog(
        catalog, static_endpoints(catalog, None), Event("catalog", "revision 2", "applied", "test")
    )
    world.hub.release_routes()
    world.hub.turn()
    assert value(world.text(), "llmgw_endpoint_breakers", model="m", state="open") == 0
    world.hub.telemetry("r1", Telemetry(breakers={"static:m:0": "open", "static:m:1": "half_open"}))
    world.hub.telemetry("r2", Telemetry(breakers={"static:m:0": "open", "gone": "open"}))
    text = world.text()
    assert value(text, "llmgw_endpoint_breakers", model="m", state="open") == 1
    assert value(text, "llmgw_endpoint_breakers", model="m", state="half_open") == 1
    assert "gone" not in text
    world.hub.router_gone("r1")
    world.hub.telemetry("r2", Telemetry())
    assert value(world.text(), "llmgw_endpoint_breakers", model="m", state="open") == 0
    assert value(world.text(), "llmgw_endpoint_breakers", model="m", state="half_open") == 0


def test_a_model_that_left_the_catalog_has_no_series_of_its_own_any_more() -> None:
    world = World("a", "b")
    world.hub.telemetry("r1", Telemetry(outcomes=[Outcome(model="a", endpoint="a-1", status=200)]))
    assert value(world.text(), "llmgw_replicas_wanted", model="a", profile="default") == 2
    world.hub.set_catalog(world.catalog("b"), {}, Event("catalog", "revision 2", "applied", "test"))
    assert 'model="a"' not in world.text()


def test_findings_are_counted_by_check_and_checks_are_bounded() -> None:
    world = World()
    world.findings = [Finding(check="clock", severity="warning", where=f"n{n}", what="x") for n in range(3)]
    assert value(world.text(), "llmgw_findings", check="clock", severity="warning") == 3
    world.findings = [
        Finding(check=f"made-up-{n}" + "x" * 500, severity="error", where="n", what="x") for n in range(1000)
    ]
    samples = families(world.text())["llmgw_findings"].samples
    assert len(samples) == CHECKS_MAX + 1
    assert sum(sample.value for sample in samples) == 1000
    assert max(len(sample.labels["check"]) for sample in samples) == 128


def test_what_agents_and_operators_write_cannot_break_the_text() -> None:
    world = World()
    odd = 'a"b\\c\nllmgw_nodes{state="ready"} 99'
    world.findings = [Finding(check=odd, severity="error", where="n", what="x")]
    world.register("node01", ports=[Port(adapter=odd, port=1, state=odd)])
    text = world.text()
    assert value(text, "llmgw_findings", check=odd, severity="error") == 1
    assert value(text, "llmgw_nodes", state="ready") == 1


def test_a_large_fleet_is_told_soon_and_holds_the_loop_for_moments_only() -> None:
    world = World(*[f"model-{n}" for n in range(50)])
    counters = dict.fromkeys(COUNTERS, 123456789)
    for n in range(400):
        ports = [
            Port(adapter=f"mlx5_{p}", port=1, state="ACTIVE", rate_gbps=400.0, counters=counters)
            for p in range(8)
        ]
        world.register(f"node{n:03d}", gpus=gpus(8), ports=ports)
    # In computing time, which a busy machine makes no longer; some 0.2 s and 10 ms on an idle one.
    whole, held = min(asyncio.run(_timed(world)) for _ in range(3))
    assert whole < 1.0
    assert held < 0.1


async def _timed(world: World) -> tuple[float, float]:
    """What a scrape computes, in s, and what the loop's thread does at most between two looks of the loop."""
    longest, began = 0.0, time.process_time()
    scrape = asyncio.create_task(world.metrics.text())
    while not scrape.done():
        computed = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - computed)
    return time.process_time() - began, longest


def test_who_scrapes_at_the_same_time_gets_the_same_text_made_once() -> None:
    world = World()

    async def test() -> None:
        one, other = await asyncio.gather(world.metrics.text(), world.metrics.text())
        assert one is other
        assert await world.metrics.text() is not one
        left = asyncio.create_task(world.metrics.text())
        stays = asyncio.create_task(world.metrics.text())
        await asyncio.sleep(0)
        left.cancel()
        assert families((await stays).decode())

    asyncio.run(test())
