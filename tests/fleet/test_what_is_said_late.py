"""What agents and routers say late, twice, or after somebody else has spoken for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
import pytest

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.events import Event
from llmgw.fleet.lives import Life
from llmgw.fleet.model import Node, NodeState
from llmgw.fleet.observe import Enrolment
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.agent import (
    EngineOffer,
    FabricOffer,
    Gpu,
    HeldShard,
    Inventory,
    Register,
    Report,
    Reported,
    ShardSpec,
    StopShard,
)
from llmgw.messages.routes import ModelRoute, RouteEndpoint, RouteTable, TableVersion
from llmgw.server.hub import Clock, Hub, HubError


class NoMemory:
    def record(self, events: Iterable[Event], at: float) -> None: ...

    def node_registered(self, node: Node, life: Life, at: float) -> None: ...

    def fabrics_changed(self, node: Node, at: float) -> None: ...

    async def stored(self, timeout_s: float) -> bool:
        return True


class Counted:
    def __init__(self) -> None:
        self.last = 0

    def session(self) -> str:
        self.last += 1
        return f"session{self.last}"

    def replica(self, model: str) -> str:
        self.last += 1
        return f"{model}-{self.last}"

    def request(self) -> str:
        return self.session()


class Server:
    """A hub with a clock that a test moves."""

    def __init__(
        self, catalog: Catalog, known: list[str] | None = None, lives: dict[str, Life] | None = None
    ) -> None:
        self.now = 100.0
        self.hub = Hub(
            epoch="2",
            catalog=catalog,
            settings=FleetSettings(settle_s=45.0),
            clock=Clock(monotonic=lambda: self.now, wall=lambda: self.now),
            ids=Counted(),
            memory=NoMemory(),
            publish=lambda table: None,
            known_nodes=[Node(name, known=True, since=self.now) for name in known or []],
            known_lives=lives,
        )
        self.hub.start_settling()

    def register(
        self, node: str, held: list[HeldShard] | None = None, *, boot: str = "boot1", counter: int = 1
    ) -> str:
        message = Register(
            node_id=node,
            boot_id=boot,
            instance=f"agent of {boot}",
            instance_started_at=1.0,
            counter=counter,
            version="1",
            inventory=Inventory(
                gpus=[Gpu(index=0, uuid=f"{node}-gpu0", name="sim")],
                fabrics=[FabricOffer(name="ib-a", adapters=["mlx5_0:1"], usable=True)],
                engines=[EngineOffer(name="sim")],
            ),
            held=held or [],
        )
        return self.hub.register(message, Enrolment(f"10.0.0.{node[-1]}"), "1").session

    def report(self, session: str, *shards: HeldShard) -> Reported:
        return asyncio.run(self.hub.report(Report(session=session, shards=list(shards))))

    def run(self, seconds: float) -> None:
        """Time passes, and the server decides as it goes."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.hub.turn()

    def routed(self) -> list[str]:
        table = self.hub.table
        return [endpoint.id for model in table.models for endpoint in model.endpoints] if table else []


def small(replicas: int = 1) -> Catalog:
    return Catalog(models=[CatalogModel(name="small", profiles=[Profile(engine="sim", replicas=replicas)])])


def pair() -> Catalog:
    return Catalog(models=[CatalogModel(name="big", profiles=[Profile(engine="sim", nodes=2, gpus_per_node=1)])])


def shard(
    catalog: Catalog, replica: str, node: str, phase: str = "ready", *, rank: int = 0, version: int = 3
) -> HeldShard:
    model = catalog.models[0]
    profile = model.profiles[0]
    spec = ShardSpec(
        shard_id=f"{replica}.{rank}",
        replica_id=replica,
        model=model.name,
        profile=profile.name,
        profile_hash=model.profile_hashes[profile.name],
        served_names=[model.name],
        rank=rank,
        nodes=profile.nodes,
        gpus=[f"{node}-gpu0"],
        engine="sim",
        fabric="ib-a" if profile.nodes > 1 else None,
    )
    return HeldShard(spec=spec, phase=phase, version=version, http_port=21000 if rank == 0 else None)  # type: ignore[arg-type]


def table_of_before(model: str, replica: str, node: str) -> RouteTable:
    endpoint = RouteEndpoint(id=replica, host=f"10.0.0.{node[-1]}", port=21000, node=node)
    return RouteTable(version=TableVersion("1", 7), models=[ModelRoute(name=model, endpoints=[endpoint])])


def stops_waiting(server: Server, node: str) -> list[str]:
    mailbox = server.hub.sessions.mailbox(node)
    return [command.shard_id for command in mailbox._commands if isinstance(command, StopShard)]


def test_a_shard_that_comes_back_after_its_end_is_stopped_each_time_and_its_gpu_is_free_again() -> None:
    catalog = small(0)
    server = Server(catalog)
    session = server.register("node1")
    server.now += 60
    late = shard(catalog, "small-x", "node1")
    ended = shard(catalog, "small-x", "node1", "stopped", version=9)
    for times in (1, 2):
        server.report(session, late)
        server.hub.turn()
        assert stops_waiting(server, "node1") == ["small-x.0"] * times
        server.report(session, ended)
        server.hub.turn()
        assert server.hub.fleet.gpus_in_use() == {}


def test_a_shard_that_was_let_go_and_is_reported_again_holds_its_gpu_until_it_is_stopped() -> None:
    catalog = pair()
    server = Server(catalog)
    leader, worker = shard(catalog, "big-x", "node1"), shard(catalog, "big-x", "node2", rank=1)
    server.register("node1", [leader])
    server.register("node2", [worker])
    server.hub.turn()
    # Its other rank keeps the failed replica from being forgotten.
    server.register("node1", [], counter=2)
    server.hub.turn()
    server.register("node1", [leader], counter=3)
    assert server.hub.fleet.gpus_in_use()["node1"] == {"node1-gpu0"}
    server.hub.turn()
    assert stops_waiting(server, "node1") == ["big-x.0"]
    session = server.hub.fleet.nodes["node1"].session or ""
    server.report(session, msgspec.structs.replace(leader, phase="stopped", version=9))
    assert "node1" not in server.hub.fleet.gpus_in_use()


def test_a_registration_of_an_older_life_is_refused_after_a_server_restart_too() -> None:
    server = Server(small(), ["node1"], {"node1": Life("boot1", "agent of boot1", 1.0, 5)})
    with pytest.raises(HubError) as refused:
        server.register("node1", counter=5)
    assert refused.value.status == 409
    server.register("node1", counter=6)


def test_a_late_registration_of_an_earlier_boot_is_refused_though_the_later_one_is_silent() -> None:
    server = Server(small())
    server.register("node1", boot="boot1", counter=3)
    server.now += 60
    server.register("node1", boot="boot2", counter=1)
    server.now += 60
    with pytest.raises(HubError):
        server.register("node1", boot="boot1", counter=3)
    server.register("node1", boot="boot1", counter=4)


def test_a_late_registration_does_not_bring_a_removed_node_back() -> None:
    server = Server(small())
    server.register("node1", counter=2)
    server.hub.remove_node("node1", "test")
    with pytest.raises(HubError):
        server.register("node1", counter=1)
    server.register("node1", counter=3)


def test_a_route_of_before_is_gone_when_its_node_registered_without_it_before_the_routers_were_asked() -> None:
    server = Server(small(), ["node1", "node2"])
    server.register("node1", [])
    server.hub.import_table(table_of_before("small", "small-x", "node1"))
    server.hub.release_routes()
    server.hub.turn()
    assert server.routed() == []


def test_a_late_router_brings_no_route_to_a_node_that_registered_without_it_and_is_lost() -> None:
    # Found by simulation: a router that hung greeted after its node had been heard and lost.
    server = Server(small(), ["node1", "node2"])
    server.register("node1", [])
    node = server.hub.fleet.nodes["node1"]
    node.state, node.session = NodeState.LOST, None
    server.hub.import_table(table_of_before("small", "small-x", "node1"))
    assert server.hub.fleet.inherited == {}


def test_no_table_is_published_before_a_router_that_lives_was_asked_for_its_own() -> None:
    server = Server(small(2), ["node1", "node2"])
    server.register("node1", [])
    server.now += 60
    server.hub.turn()
    assert server.hub.table is None
    assert server.hub.fleet.settling_until is None
    # It greets late: settling is over, and its route leads to a node that has not been heard.
    server.hub.import_table(table_of_before("small", "small-x", "node2"))
    server.hub.release_routes()
    server.hub.turn()
    assert server.routed() == ["small-x"]
    server.run(FleetSettings().lost_after_s + 2)
    assert server.routed() == []


def test_a_gang_s_route_stays_when_its_worker_registered_before_the_routers_were_asked() -> None:
    catalog = pair()
    server = Server(catalog, ["node1", "node2"])
    server.register("node2", [shard(catalog, "big-x", "node2", rank=1)])
    server.hub.import_table(table_of_before("big", "big-x", "node1"))
    server.hub.release_routes()
    server.hub.turn()
    assert server.routed() == ["big-x"]


def test_a_route_of_before_is_withdrawn_when_its_leader_is_reported_to_be_stopping() -> None:
    catalog = pair()
    server = Server(catalog, ["node1", "node2"])
    server.hub.import_table(table_of_before("big", "big-x", "node1"))
    server.hub.release_routes()
    session = server.register("node1", [shard(catalog, "big-x", "node1")])
    server.hub.turn()
    assert server.routed() == ["big-x"]
    server.report(session, shard(catalog, "big-x", "node1", "stopping", version=4))
    server.hub.turn()
    assert server.routed() == []


def test_a_clone_is_refused_while_the_shards_of_the_first_work_though_its_agent_is_cut_off() -> None:
    catalog = small()
    server = Server(catalog)
    server.register("node1", [shard(catalog, "small-x", "node1")])
    server.hub.turn()
    for _ in range(60):
        server.run(1)
        server.hub.probed("small-x", True, server.now)
    with pytest.raises(HubError):
        server.register("node1", boot="boot2")
    server.run(20)
    server.register("node1", boot="boot2")


def test_a_server_that_stood_still_judges_nobody_before_it_has_forgiven_the_pause() -> None:
    catalog = small()
    server = Server(catalog)
    server.register("node1", [shard(catalog, "small-x", "node1")])
    server.run(60)
    server.register("node1", [shard(catalog, "small-x", "node1")], counter=2)
    server.run(1)
    # An operator's request, or a clone's registration, may be the first thing that it does when it goes on.
    server.now += 60
    server.hub.turn()
    assert server.hub.fleet.nodes["node1"].state is NodeState.READY
    server.now += 60
    with pytest.raises(HubError):
        server.register("node1", boot="boot2")
    server.run(13)
    assert server.hub.fleet.nodes["node1"].state is NodeState.READY
    server.run(5)
    assert server.hub.fleet.nodes["node1"].state is NodeState.LOST


def test_who_speaks_as_the_server_wakes_up_has_spoken_now_and_not_later() -> None:
    server = Server(small())
    session = server.register("node1")
    server.run(1)
    server.now += 60
    server.report(session)
    server.hub.turn()
    assert server.hub.fleet.nodes["node1"].last_heard == server.now


def test_the_end_of_a_long_poll_is_no_sign_of_life() -> None:
    # A frozen node's poll ends after 25 s by the server's own clock: it must not count as having been heard.
    server = Server(small())
    session = server.register("node1")

    async def wait_in_vain() -> None:
        polling = asyncio.create_task(server.hub.poll(session, 0, 0.05))
        await asyncio.sleep(0)
        server.now += 10
        assert await polling == []

    heard_at = server.now
    asyncio.run(wait_in_vain())
    assert server.hub.fleet.nodes["node1"].last_heard == heard_at
