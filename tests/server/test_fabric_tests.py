"""Fabric tests as the control plane runs them, on a virtual clock, with agents that are functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from llmgw.config.catalog import Catalog
from llmgw.fleet.fabric_facts import FabricFacts, Place
from llmgw.fleet.observe import Enrolment
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.agent import FabricOffer, Inventory, Port, Register, Report
from llmgw.messages.fabric_test import (
    BandwidthAnswer,
    EndBandwidth,
    MeasureBandwidth,
    PrepareBandwidth,
    ServeBandwidth,
)
from llmgw.messages.fabric_test_views import FabricTestResult, FabricTestView, StartFabricTest
from llmgw.server.admin.backend import AdminError
from llmgw.server.fabric_tests.tests import FabricTests
from llmgw.server.hub import Clock, Hub
from llmgw.server.ids import RandomIds
from tests.server.test_metrics import Forgetful
from tests.simulation.virtual_loop import VirtualLoop
from tests.store.inline import InlineStore

NOW = 1_900_000_000.0
TABLE = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 8388608    29610            0.00               {gbps:.2f}           0.005860
"""


class Agent:
    """A node's agent: polls, and answers what a test asks of it."""

    def __init__(self, cluster: Cluster, node_id: str, fabrics: dict[str, int], features: list[str]) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.gbps: Callable[[str, str], float] = lambda adapter, host: 390.0
        self.prepared: dict[str, Any] = {"pcie_gbps": {}}
        self.silent_on: type | None = None
        self.alive: dict[str, str] = {}
        """End → adapter, of those that run."""
        self.busiest = 0
        self.asked: list[Any] = []
        names = [(fabric, number) for fabric, count in fabrics.items() for number in range(count)]
        ports = [
            Port(adapter=f"mlx5_{at}", port=1, link_layer="InfiniBand", state="ACTIVE", rate_gbps=400.0)
            for at in range(len(names))
        ]
        offers = [
            FabricOffer(
                name=fabric,
                usable=count > 0,
                reason=None if count else "mlx5_0 port 1 is not up",
                adapters=[f"mlx5_{at}:1" for at, (name, _) in enumerate(names) if name == fabric],
            )
            for fabric, count in fabrics.items()
        ]
        message = Register(
            node_id=node_id,
            boot_id="b",
            instance="i",
            instance_started_at=1.0,
            counter=1,
            version="0.0.9",
            features=features,
            inventory=Inventory(ports=ports, fabrics=offers),
        )
        address = f"10.0.0.{len(cluster.agents) + 1}"
        self.session = cluster.hub.register(message, Enrolment(address, NOW + 3600), "1").session
        self.task = asyncio.ensure_future(self.run())
        self.answering: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        acked = 0
        while True:
            for command in await self.cluster.hub.poll(self.session, acked, 25.0):
                acked = command.seq
                self.asked.append(command)
                task = asyncio.ensure_future(self.answer(command))
                self.answering.add(task)
                task.add_done_callback(self.answering.discard)

    async def answer(self, command: Any) -> None:
        if self.silent_on is not None and isinstance(command, self.silent_on):
            return
        told: dict[str, Any] = {}
        if isinstance(command, PrepareBandwidth):
            told = self.prepared
        elif isinstance(command, ServeBandwidth):
            self.begin(command)
            told = {"tcp_port": 20000}
        elif isinstance(command, MeasureBandwidth):
            self.begin(command)
            await asyncio.sleep(command.seconds)
            gbps = self.gbps(command.adapter, command.host)
            told = {"output": TABLE.format(gbps=gbps), "exit_code": 0}
            self.alive.pop(command.end, None)
        elif isinstance(command, EndBandwidth):
            self.alive.pop(command.end, None)
        answer = BandwidthAnswer(request_id=command.request_id, **told)
        await self.cluster.hub.report(Report(session=self.session, bandwidths=[answer]))

    def begin(self, command: ServeBandwidth | MeasureBandwidth) -> None:
        self.alive[command.end] = command.adapter
        self.busiest = max(self.busiest, len(self.alive))


class Cluster:
    """A hub, a store, and agents."""

    def __init__(self, state: Path, require_s: float | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.store = InlineStore.open(state, NOW)
        self.hub = Hub(
            epoch=self.store.epoch,
            catalog=Catalog(),
            settings=FleetSettings(),
            clock=Clock(monotonic=self.loop.time, wall=lambda: NOW + self.loop.time()),
            ids=RandomIds(),
            memory=Forgetful(),
            publish=lambda table: None,
        )
        self.agents: dict[str, Agent] = {}
        self.tests = FabricTests(self.hub, self.store, require_s=require_s)
        self.task = asyncio.ensure_future(self.tests.run())

    def node(self, node_id: str, features: list[str] | None = None, **fabrics: int) -> Agent:
        names = {name.replace("_", "-"): count for name, count in (fabrics or {"ib_a": 2}).items()}
        agent = Agent(self, node_id, names, ["fabric_test"] if features is None else features)
        self.agents[node_id] = agent
        return agent

    async def start(self, *nodes: str, **wish: Any) -> FabricTestView:
        return await self.tests.start(StartFabricTest(nodes=list(nodes), **wish), by="ops")

    async def finish(self, test: FabricTestView) -> FabricTestView:
        """Stay with a test to its end."""
        while test.state == "running":
            test = await self.tests.view(test.id, after=0, seen=test.version, wait_s=20)
        return test

    async def measure(self, *nodes: str, **wish: Any) -> FabricTestView:
        return await self.finish(await self.start(*nodes, **wish))

    async def refused(self, *nodes: str, **wish: Any) -> AdminError:
        with pytest.raises(AdminError) as error:
            await self.start(*nodes, **wish)
        return error.value


Body = Callable[[Cluster], Coroutine[Any, Any, None]]


@pytest.fixture
def with_cluster(tmp_path: Path) -> Callable[..., None]:
    """Runs a test's body on a virtual clock."""

    def run(body: Body, **options: Any) -> None:
        async def main() -> None:
            cluster = Cluster(tmp_path / "state", **options)
            try:
                await body(cluster)
            finally:
                tasks = [cluster.task, *(agent.task for agent in cluster.agents.values())]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        loop = VirtualLoop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(main())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
        assert not loop.unhandled

    return run


def test_all_pairs_are_walked_in_rounds_in_which_no_node_takes_part_twice(
    with_cluster: Callable[..., None],
) -> None:
    async def body(cluster: Cluster) -> None:
        for number in range(1, 6):
            cluster.node(f"n{number}")
        test = await cluster.measure(all_pairs=True, seconds=10)
        assert (test.state, test.planned, test.done) == ("done", 40, 40)
        pairs = {frozenset(result.nodes) for result in test.results}
        assert len(pairs) == 10
        # One end at a time on each node, and the two pairs of a round side by side: 5 rounds of 4 measurements.
        assert {agent.busiest for agent in cluster.agents.values()} == {1}
        assert test.ended_at is not None
        assert 200 <= test.ended_at - test.started_at < 215
        assert test.blamed == []

    with_cluster(body)


def test_only_so_many_rounds_are_walked_as_are_asked_for(with_cluster: Callable[..., None]) -> None:
    async def body(cluster: Cluster) -> None:
        for number in range(1, 5):
            cluster.node(f"n{number}")
        test = await cluster.measure(all_pairs=True, rounds=1)
        assert (test.planned, test.done) == (8, 8)
        assert {node for result in test.results for node in result.nodes} == {"n1", "n2", "n3", "n4"}

    with_cluster(body)


def test_a_leaf_is_named_where_the_map_knows_it(with_cluster: Callable[..., None]) -> None:
    async def body(cluster: Cluster) -> None:
        addresses = {}
        for number in range(1, 5):
            agent = cluster.node(f"n{number}")
            addresses[cluster.hub.fleet.nodes[agent.node_id].address] = number > 2
        for number, agent in enumerate(cluster.agents.values(), start=1):
            agent.gbps = lambda adapter, host, own=number > 2: 390.0 if addresses[host] == own else 100.0
        places = {(f"n{n}", "ib-a"): Place(leaves=("L1" if n < 3 else "L2",) * 2) for n in range(1, 5)}
        cluster.hub.set_fabric_facts(FabricFacts(places=places, leaf_names={"L1": "leaf-01", "L2": "leaf-02"}))
        test = await cluster.measure(all_pairs=True)
        [sentence] = test.blamed
        assert sentence.startswith("the cables from leaf switch leaf-0")

    with_cluster(body)


def test_a_test_that_nobody_asks_about_is_ended_on_both_nodes(with_cluster: Callable[..., None]) -> None:
    async def body(cluster: Cluster) -> None:
        one, other = cluster.node("n1"), cluster.node("n2")
        started = await cluster.start("n1", "n2", seconds=60)
        await asyncio.sleep(20)
        assert one.alive
        assert other.alive
        await asyncio.sleep(15)
        assert not one.alive
        assert not other.alive
        test = await cluster.tests.view(started.id, after=0, seen=None, wait_s=0)
        assert (test.state, test.reason, test.results) == ("ended", "nobody asked about it for 30 s", [])

    with_cluster(body)


def test_a_detached_test_and_one_that_is_waited_for_go_on(with_cluster: Callable[..., None]) -> None:
    async def body(cluster: Cluster) -> None:
        for number in range(1, 5):
            cluster.node(f"n{number}")
        detached = await cluster.start("n1", "n2", seconds=60, detached=True)
        watched = await cluster.measure("n3", "n4", seconds=60)
        assert watched.state == "done"
        test = await cluster.tests.view(detached.id, after=1, seen=None, wait_s=0)
        assert (test.state, test.done, test.first, len(test.results)) == ("done", 4, 1, 3)

    with_cluster(body)


def test_an_ended_test_leaves_nothing_and_keeps_what_it_found(with_cluster: Callable[..., None]) -> None:
    async def body(cluster: Cluster) -> None:
        one, other = cluster.node("n1"), cluster.node("n2")
        started = await cluster.start("n1", "n2", seconds=10)
        await asyncio.sleep(15)
        await cluster.tests.end(started.id, by="ops")
        assert not one.alive
        assert not other.alive
        test = await cluster.finish(started)
        assert (test.state, test.reason, test.done) == ("ended", "ended by ops", 1)
        assert cluster.tests.kept(fabric=None, node="n2", limit=9) == test.results
        again = await cluster.tests.end(started.id, by="ops")
        assert "over already" in again.message

    with_cluster(body)


def test_a_node_that_is_silent_costs_its_measurements_and_no_more(with_cluster: Callable[..., None]) -> None:
    async def body(cluster: Cluster) -> None:
        one, other = cluster.node("n1", ib_a=1), cluster.node("n2", ib_a=1)
        one.silent_on = MeasureBandwidth
        test = await cluster.measure("n1", "n2")
        assert [(result.grade, result.words) for result in test.results] == [
            ("error", "n1 did not answer within 35 s"),
            ("good", ""),
        ]
        assert isinstance(other.asked[-1], EndBandwidth)

    with_cluster(body)


def test_an_agent_that_starts_again_is_noticed_at_once(with_cluster: Callable[..., None]) -> None:
    async def body(cluster: Cluster) -> None:
        cluster.node("n1", ib_a=1)
        cluster.node("n2", ib_a=1)
        started = await cluster.start("n1", "n2", seconds=60, detached=True)
        await asyncio.sleep(5)
        cluster.hub.sessions.end("n2")
        await asyncio.sleep(1.5)
        test = await cluster.tests.view(started.id, after=0, seen=None, wait_s=0)
        assert [result.words for result in test.results][:1] == [
            "n2 was lost during the test, or its agent started again"
        ]

    with_cluster(body)


def test_a_node_that_is_lost_speaks_against_no_fabric_and_no_partner(with_cluster: Callable[..., None]) -> None:
    async def body(cluster: Cluster) -> None:
        cluster.node("n1")
        lost = cluster.node("n2")
        started = await cluster.start("n1", "n2", seconds=60, detached=True)
        await asyncio.sleep(5)
        lost.task.cancel()
        cluster.hub.sessions.end("n2")
        test = await cluster.finish(started)
        assert [result.grade for result in test.results] == ["error"] * 4
        assert cluster.tests.doubts() == {}
        assert cluster.tests.kept(fabric=None, node=None, limit=9) == []

    with_cluster(body)


def test_a_client_whose_server_was_taken_away_complains_of_that_and_not_of_the_fabric(
    with_cluster: Callable[..., None],
) -> None:
    async def body(cluster: Cluster) -> None:
        cluster.node("n1", ib_a=1)
        lost = cluster.node("n2", ib_a=1)
        # Its agent dies with the server end: the client sees that long before the control plane does.
        lost.silent_on = EndBandwidth
        cluster.agents["n1"].gbps = lambda adapter, host: 0.0
        test = await cluster.measure("n1", "n2")
        assert test.results[0].words.endswith("; n2 was lost during the test, or its agent started again")
        assert ("n1", "ib-a") not in cluster.tests.doubts()

    with_cluster(body)


def test_the_pcie_slot_is_the_limit_where_it_is_slower_than_the_link(with_cluster: Callable[..., None]) -> None:
    async def body(cluster: Cluster) -> None:
        one, other = cluster.node("n1", ib_a=1), cluster.node("n2", ib_a=1)
        one.prepared = {"pcie_gbps": {"mlx5_0": 504.1}}
        other.prepared = {"pcie_gbps": {"mlx5_0": 252.1}}
        one.gbps = other.gbps = lambda adapter, host: 240.0
        test = await cluster.measure("n1", "n2")
        assert [(r.limit_gbps, r.limited_by, r.grade) for r in test.results] == [
            (252.1, "the PCIe slot of mlx5_0 in n2", "good")
        ] * 2

    with_cluster(body)


def test_adapters_without_a_partner_are_told(with_cluster: Callable[..., None]) -> None:
    async def body(cluster: Cluster) -> None:
        cluster.node("n1", ib_a=4)
        cluster.node("n2", ib_a=1)
        test = await cluster.measure("n1", "n2")
        assert test.done == 2
        assert test.notes == ["n1 has 4 ports on ib-a and n2 1: only the first 1 are paired"]

    with_cluster(body)


def test_a_node_without_perftest_is_left_out_of_all_pairs_and_ends_a_test_of_two(
    with_cluster: Callable[..., None],
) -> None:
    async def body(cluster: Cluster) -> None:
        for number in range(1, 4):
            cluster.node(f"n{number}")
        cluster.agents["n1"].prepared = {"pcie_gbps": {}, "installed": True}
        cluster.agents["n3"].prepared = {"error": "ib_write_bw is not installed; install it"}
        test = await cluster.measure(all_pairs=True)
        assert {frozenset(result.nodes) for result in test.results} == {frozenset({"n1", "n2"})}
        assert test.notes == [
            "perftest was installed on n1",
            "left out: n3: ib_write_bw is not installed; install it",
        ]
        test = await cluster.measure("n3", "n2", install=False)
        assert (test.state, test.reason) == ("ended", "n3: ib_write_bw is not installed; install it")
        assert cluster.agents["n3"].asked[-1].install is False

    with_cluster(body)


def test_who_cannot_be_tested_is_refused_at_once_with_a_sentence(with_cluster: Callable[..., None]) -> None:
    async def body(cluster: Cluster) -> None:
        cluster.node("node01", ib_a=1, ib_b=1)
        cluster.node("node02", ib_a=1, ib_b=1)
        cluster.node("node03", ib_b=0)
        cluster.node("old", ["logs", "engine_help"])
        cluster.node("apart", ib_c=1)
        cases: list[tuple[tuple[str, ...], dict[str, Any], int, str]] = [
            (("node01", "node02"), {}, 400, "node01 and node02 share ib-a, ib-b; name one with --fabric"),
            (("node01", "node03"), {}, 409, "ib-b is not usable on node03: mlx5_0 port 1 is not up"),
            (
                ("node01", "old"),
                {},
                501,
                "the agent of old (llmgw 0.0.9) cannot test fabrics; update llmgw there",
            ),
            (("node01", "nod02"), {}, 404, "there is no node 'nod02'; did you mean node02 or "),
            (("node01", "x"), {}, 404, "there is no node 'x'; the nodes are apart, node01, node02"),
            (("node01", "node01"), {}, 400, "node01 is named twice"),
            (("node01", "apart"), {}, 409, "share no fabric: node01 is on ib-a, ib-b, apart is on ib-c"),
            (("node01",), {}, 400, "a test is between two nodes, not 1"),
            ((), {"all_pairs": True}, 400, "name one fabric with --fabric: ib-a, ib-b, ib-c"),
            ((), {"all_pairs": True, "fabric": "ib-x"}, 404, "no node declares a fabric 'ib-x'"),
            ((), {"all_pairs": True, "fabric": "ib-c"}, 409, "ib-c has fewer than two nodes to test"),
            (("node01", "node02"), {"rounds": 2, "fabric": "ib-a"}, 400, "rounds are of all_pairs"),
        ]
        for nodes, wish, status, says in cases:
            error = await cluster.refused(*nodes, **wish)
            assert (error.status, says in error.message) == (status, True), error.message
        test = await cluster.measure("node01", "node02", fabric="ib-b")
        assert [result.sender_port for result in test.results] == ["mlx5_1:1", "mlx5_1:1"]
        assert all(not agent.asked for name, agent in cluster.agents.items() if name in ("old", "apart"))

    with_cluster(body)


def test_results_are_kept_over_a_restart_and_open_the_gate(
    with_cluster: Callable[..., None], tmp_path: Path
) -> None:
    kept: list[FabricTestResult] = []

    async def first(cluster: Cluster) -> None:
        cluster.node("n1")
        cluster.node("n2")
        assert cluster.hub.fleet.fabric_test_gate is not None
        assert not cluster.hub.fleet.fabric_test_gate.opens("n1", "ib-a")
        kept.extend((await cluster.measure("n1", "n2")).results)
        assert cluster.hub.fleet.fabric_test_gate.opens("n1", "ib-a")
        assert not cluster.hub.fleet.fabric_test_gate.opens("n1", "ib-b")
        assert cluster.tests.doubts() == {}

    async def second(cluster: Cluster) -> None:
        assert cluster.tests.kept(fabric="ib-a", node=None, limit=100) == kept[::-1]
        assert cluster.tests.kept(fabric="ib-b", node=None, limit=100) == []
        gate = cluster.hub.fleet.fabric_test_gate
        assert gate is not None
        assert gate.opens("n2", "ib-a")
        # The gate closes by itself as the time passes.
        await asyncio.sleep(3700)
        gate = cluster.hub.fleet.fabric_test_gate
        assert gate is not None
        assert not gate.opens("n2", "ib-a")
        assert (
            gate.why_not("n2", "ib-a") == "ib-a: last passed a test 1 h ago; llmgw ctl fabric-test n2 OTHER_NODE"
        )

    with_cluster(first, require_s=3600.0)
    with_cluster(second, require_s=3600.0)


def test_a_failed_test_puts_the_nodes_in_doubt(with_cluster: Callable[..., None]) -> None:
    async def body(cluster: Cluster) -> None:
        one = cluster.node("n1", ib_a=1)
        cluster.node("n2", ib_a=1)
        one.gbps = lambda adapter, host: 100.0
        await cluster.measure("n1", "n2")
        assert cluster.tests.doubts() == {}  # one direction failed, the other did not
        cluster.agents["n2"].gbps = one.gbps
        await cluster.measure("n1", "n2")
        assert cluster.tests.doubts()["n1", "ib-a"] == (
            "mlx5_0:1 reached only 100 of 400 Gb/s in the fabric test with n2"
        )

    with_cluster(body)
