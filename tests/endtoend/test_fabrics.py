"""A server asks nodes about their fabrics, and tells what it learned: through the front door."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.endtoend.conftest import llmgw, until
from tests.endtoend.fabric_nodes import FabricNode, FabricWorld, fabric_world, port
from tests.fabric.generate import Fabric, fat_tree
from tests.fabric.smir import MASTER, STANDBY, elsewhere, elsewhere_guid, smir
from tests.pages.visitor import words

SAMPLES = Path(os.environ.get("LLMGW_SHARED", Path(__file__).parents[3] / "shared")) / "samples"
SWITCHES = 4
A_MASTER, A_STANDBY = 0x0C42A10300009901, 0x0C42A10300009902
SILENT = {"complaints": "Query SA failed: Connection timed out", "exit_code": 255}


def cluster(world: FabricWorld) -> tuple[Fabric, list[FabricNode]]:
    """Two nodes on ib-a, two on ib-b; each fabric has two leaves and two spines."""
    made = fat_tree(nodes=2, rails=2, leaves=2, spines=2)
    nodes = []
    for name, guid in (("ib-a", int), ("ib-b", elsewhere_guid)):
        for at in range(2):
            mine = made.adapters[2 * at : 2 * at + 2]
            ports = [port(f"mlx5_{rail}", guid(adapter.guid)) for rail, adapter in enumerate(mine)]
            nodes.append(world.node(f"{name[-1]}{at + 1}", name, ports))
    for node in nodes:
        if node.fabric == "ib-a":
            node.answers["managers"] = smir((A_MASTER, 1, 14, MASTER), (A_STANDBY, 7, 12, STANDBY))
            node.answers["map"] = made.text()
        else:
            node.answers["managers"] = smir((elsewhere_guid(A_MASTER), 1, 15, MASTER))
            node.answers["map"] = elsewhere(made.text())
    return made, nodes


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FabricWorld]:
    with fabric_world(tmp_path) as made:
        yield made


def say(nodes: list[FabricNode], fabric: str, **answers: Any) -> None:
    for node in nodes:
        if node.fabric == fabric:
            node.answers |= answers


def changes(world: FabricWorld, name: str) -> list[tuple[str, str]]:
    found = world.server.get(f"fabrics/{name}/changes")["changes"]
    return [(change["kind"], change["what"]) for change in found]


def problems(world: FabricWorld) -> list[str]:
    return [finding["check"] for finding in world.server.get("server")["problems"]]


def refusal(world: FabricWorld, *arguments: str) -> str:
    done = llmgw("ctl", "fabric", *arguments, env={"LLMGW_STATE": str(world.server.state), "NO_COLOR": "1"})
    assert done.returncode == 1, done.stdout
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def mapped(world: FabricWorld, name: str = "ib-a") -> dict[str, Any]:
    """Wait until a fabric's managers and map are known."""

    def known() -> dict[str, Any]:
        view = world.fabric(name)
        return view if view.get("answer") == "ok" and view.get("map") else {}

    found: dict[str, Any] = until(known, 20, world.server.log)
    return found


def test_two_fabrics_are_asked_mapped_and_shown_and_a_failover_changes_no_identity(world: FabricWorld) -> None:
    _, nodes = cluster(world)
    for node in nodes:
        node.start()
    first = mapped(world)
    assert first["id"] == f"0x{A_MASTER:016x}"
    assert first["link_layer"] == "InfiniBand"
    assert (first["master"]["priority"], [one["lid"] for one in first["standbys"]]) == (14, [7])
    assert (first["map"]["switches"], first["map"]["adapters"]) == (SWITCHES, 4)
    assert first["map"]["asked"].split(" ")[0] in ("a1", "a2")
    assert first["problems"] == []
    other = mapped(world, "ib-b")
    assert other["id"] == f"0x{elsewhere_guid(A_MASTER):016x}"
    assert any("no standby" in problem for problem in other["problems"])
    assert {what for node in nodes for what, _ in node.asked} == {"managers", "map"}

    shown = world.server.ctl("fabrics")
    assert "0x0c42a10300009901 priority 14" in shown
    assert "0x0c42a10300009902 priority 12" in shown
    assert "4 switches, 4 adapters" in shown
    assert "PROBLEM: ib-b: no standby" in shown
    assert "fabric-no-standby" in problems(world)
    assert "no standby" in world.server.ctl("status")

    # The master dies: nothing answers for a while, then the standby is the master, and alone.
    say(nodes, "ib-a", managers=SILENT)
    silent = until(lambda: (v := world.fabric("ib-a"))["silent_since"] and v)
    assert (silent["answer"], silent["id"]) == ("unknown", first["id"])
    assert silent["master"]["guid"] == f"0x{A_MASTER:016x}"
    assert "unknown, last seen" in world.server.ctl("fabrics")
    say(nodes, "ib-a", managers=smir((A_STANDBY, 7, 12, MASTER)))
    after = until(lambda: (v := world.fabric("ib-a"))["answer"] == "ok" and v)
    assert after["id"] == first["id"]
    assert after["master"]["guid"] == f"0x{A_STANDBY:016x}"
    said = " ".join(after["problems"])
    assert "no standby" in said
    assert "the master changed" in said
    kinds = [kind for kind, _ in changes(world, "ib-a")]
    assert {"managers silent", "managers back", "master changed", "manager gone"} <= set(kinds)
    assert "master changed" in world.server.ctl("history", "--kind", "fabric")

    # What is known outlives the server.
    world.server.kill()
    say(nodes, "ib-a", managers=SILENT)
    world.server.start_again()
    world.server.wait_serving()
    back = until(lambda: (v := world.fabric("ib-a")).get("silent_since") and v, 30, world.server.log)
    assert back["id"] == first["id"]
    assert back["master"]["guid"] == f"0x{A_STANDBY:016x}"
    assert back["answer"] == "unknown"
    assert any("the master changed" in problem for problem in back["problems"])


def test_a_cable_that_goes_is_told_and_after_accepting_it_is_a_finding(world: FabricWorld) -> None:
    made, nodes = cluster(world)
    for node in nodes:
        node.start()
    mapped(world)
    leaf, spine = made.switches[0], made.switches[2]
    at = next(at for at, (other, _, _) in leaf.cables.items() if other is spine)
    _, far, rate = leaf.cables[at]
    del leaf.cables[at], spine.cables[far]
    say(nodes, "ib-a", map=made.text())
    until(lambda: any(kind == "cable gone" for kind, _ in changes(world, "ib-a")))
    table = world.server.ctl("fabric", "changes", "ib-a")
    assert "cable gone" in table
    assert "leaf-1" in table
    assert "fabric-cabling-differs" not in problems(world)

    assert "nobody can be asked here; repeat with --yes" in refusal(world, "accept", "ib-a")
    assert "is accepted: 4 switches" in world.server.ctl("fabric", "accept", "ib-a", "--yes")
    assert world.fabric("ib-a")["differences"] == 0
    made.join(leaf, at, spine, far, rate)
    say(nodes, "ib-a", map=made.text())
    until(lambda: "fabric-cabling-differs" in problems(world))
    assert world.fabric("ib-a")["differences"] == 1
    assert "DIFFERENCE: the cable from" in world.server.ctl("fabric", "changes", "ib-a")
    assert "other than accepted: the cable" in world.server.ctl("status")

    # A cable below its rate.
    made.rerate(leaf, at, "4xHDR")
    say(nodes, "ib-a", map=made.text())
    until(lambda: "fabric-cable-slow" in problems(world))
    slow = world.fabric("ib-a")["map"]["slow"]
    assert [(cable["rate"], cable["expected"]) for cable in slow] == [("4xHDR", "4xNDR")]
    report = json.loads(world.server.ctl("fabric", "map", "ib-a", "-o", "json"))
    assert (report["switches"], len(report["slow"])) == (SWITCHES, 1)
    assert "slow cable from" in world.server.ctl("fabric", "map", "ib-a").lower()


def test_a_port_s_changes_and_a_scrape_tell_of_the_fabric(world: FabricWorld) -> None:
    _, nodes = cluster(world)
    for node in nodes:
        node.start()
    mapped(world)
    down = nodes[0].ports[1]
    down |= {"state": "DOWN", "phys_state": "Polling"}
    nodes[0].heartbeat()
    told = until(lambda: [what for kind, what in changes(world, "ib-a") if kind == "port state"])
    assert told == ["a1 mlx5_1:1 is DOWN (Polling), and was ACTIVE"]
    # Which fabric it carried is known of a port that is down, too.
    assert world.server.get("nodes/a1")["port_fabrics"]["mlx5_1:1"] == "ib-a"
    assert "mlx5_1:1 ib-a ✕ DOWN Polling" in words(world.server.page("/admin/nodes/a1"))
    down |= {"state": "INIT", "phys_state": "LinkUp", "sm_lid": None}
    nodes[0].heartbeat()
    until(lambda: "fabric-ports-unmanaged" in problems(world))
    assert "✕ error ib-a a1 mlx5_1:1 is up, but no subnet manager has configured it (INIT)" in words(
        world.server.page("/admin")
    )
    text = httpx.get(f"{world.server.admin}/metrics", trust_env=False).text
    labels = f'fabric="ib-a",id="0x{A_MASTER:016x}"'
    assert f"llmgw_fabric_switches{{{labels}}} 4" in text
    assert f'llmgw_fabric_subnet_managers{{{labels},state="standby"}} 1' in text
    assert 'llmgw_fabric_ports{fabric="ib-a",state="INIT"} 1' in text
    assert f'llmgw_fabric_changes_total{{{labels},area="port"}}' in text


def test_names_that_are_none_and_fabrics_that_cannot_be_asked_get_sentences(world: FabricWorld) -> None:
    _, nodes = cluster(world)
    nodes[0].features = []
    nodes[2].ports = [one | {"link_layer": "Ethernet"} for one in nodes[2].ports]
    for node in (nodes[0], nodes[2]):
        node.start()
    until(lambda: world.fabric("ib-a") and world.fabric("ib-b"))
    assert "there is no fabric 'ib-x'; the fabrics are ib-a, ib-b" in refusal(world, "changes", "ib-x")
    assert "ib-b is Ethernet (RoCE)" in refusal(world, "map", "ib-b")
    until(lambda: "no agent can be asked; update llmgw on one of a1" in refusal(world, "map", "ib-a"))
    assert "the agent of a1 cannot run its tools" in world.server.ctl("fabrics")
    nodes[0].ports[0]["state"] = "DOWN"
    nodes[0].heartbeat()
    until(lambda: "no agent is healthy enough to ask" in refusal(world, "accept", "ib-a", "--yes"))


BAD_MAPS = {
    "only-itself": (
        'vendid=0x2c9\ndevid=0x1021\ncaguid=0xc1\nCa\t1 "H-00000000000000c1"\t\t# "a1 mlx5_0"\n',
        "sees only itself",
    ),
    "empty": ("", "ibnetdiscover printed nothing"),
    "no-form": ("Segmentation fault, or a poem\n" * 3, "there is no map in this text"),
    "64-megabytes": ({"output": zlib.compress(b"x" * 79 + b"\n" * 2**26, 9)}, "more than 64 MiB"),
    "cut": ({"output": "", "cut": True}, "more than 64 MiB"),
    "not-packed": ({"output": b"plain"}, "cannot be unpacked"),
    "no-tool": ({"error": "ibnetdiscover is not there; install infiniband-diags"}, "install infiniband-diags"),
    "no-permission": (
        {"complaints": "ibwarn: [1] mad_rpc_open_port: can't open UMAD port ((null):0)", "exit_code": 1},
        "may not use /dev/infiniband/umad*",
    ),
}


@pytest.fixture(scope="module")
def shared_world(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[FabricWorld, Fabric, list[FabricNode]]]:
    with fabric_world(tmp_path_factory.mktemp("fabrics")) as world:
        made, nodes = cluster(world)
        for node in nodes:
            node.start()
        yield world, made, nodes


@pytest.mark.parametrize("name", BAD_MAPS)
def test_a_map_that_is_none_is_a_sentence_and_the_last_one_stays(
    shared_world: tuple[FabricWorld, Fabric, list[FabricNode]], name: str
) -> None:
    world, made, nodes = shared_world
    said, words = BAD_MAPS[name]
    say(nodes, "ib-a", map=made.text())
    until(lambda: mapped(world)["map_error"] is None)
    say(nodes, "ib-a", map=said)
    until(lambda: words in (world.fabric("ib-a")["map_error"] or ""), 30, lambda: str(world.fabric("ib-a")))
    view = world.fabric("ib-a")
    assert view["map"]["switches"] == SWITCHES
    assert any(words in problem for problem in view["problems"])
    assert not any(kind.endswith("gone") for kind, _ in changes(world, "ib-a"))
    assert "Traceback" not in world.server.log()


def test_a_map_cut_in_the_midst_is_shown_and_makes_nothing_gone(
    shared_world: tuple[FabricWorld, Fabric, list[FabricNode]],
) -> None:
    world, made, nodes = shared_world
    text = made.text()
    say(nodes, "ib-a", map=text)
    mapped(world)
    cut = text[: text.rindex("Ca\t") + 10]
    say(nodes, "ib-a", map={"output": cut, "complaints": "ibwarn: [7] timed out", "exit_code": 1})
    until(lambda: world.fabric("ib-a")["map"]["whole"] is False)
    assert not any(kind.endswith("gone") for kind, _ in changes(world, "ib-a"))
    say(nodes, "ib-a", map=text)
    until(lambda: world.fabric("ib-a")["map"]["whole"])
    assert changes(world, "ib-a") == []


@pytest.mark.skipif(not SAMPLES.exists(), reason="there are no samples here")
def test_what_real_tools_printed_is_told(shared_world: tuple[FabricWorld, Fabric, list[FabricNode]]) -> None:
    world, _, _ = shared_world
    node = world.node("s1", "ib-s", [port("mlx5_0", 0xE09D730300206668)])  # on the map
    node.answers["managers"] = (SAMPLES / "sm" / "smir_two_master_standby.txt").read_text()
    node.answers["map"] = (SAMPLES / "ibnetdiscover" / "ndr_superpod_sharp_mixed_desc.txt").read_text()
    node.start()
    view = mapped(world, "ib-s")
    assert view["id"] == "0x0c42a10300000401"
    assert (view["master"]["lid"], view["master"]["priority"]) == (1, 14)
    assert [(one["lid"], one["priority"]) for one in view["standbys"]] == [(7, 12)]
    made = view["map"]
    assert (made["switches"], made["adapters"], made["cables"], made["slow"]) == (40, 542, 1114, [])
    assert made["tiers"] == {"leaf": 31, "spine": 9, "core": 0}
    (pair,) = [problem for problem in view["problems"] if "on the other's leaf" in problem]
    assert "HCA-5 and HCA-6" in pair
    node.answers["managers"] = {
        "complaints": (SAMPLES / "sm" / "smir_during_failover_stderr.txt").read_text(),
        "exit_code": 255,
    }
    until(lambda: world.fabric("ib-s")["silent_since"])
    node.answers["managers"] = (SAMPLES / "sm" / "smir_after_failover_one.txt").read_text()
    after = until(lambda: (v := world.fabric("ib-s"))["answer"] == "ok" and v)
    assert after["id"] == view["id"]
    assert any("no standby" in problem for problem in after["problems"])
