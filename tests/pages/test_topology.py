"""What the API tells of a fabric, and the pages without a script."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from llmgw.fabric.names import short_name
from llmgw.fabric.report import analyse
from llmgw.messages.agent import Port
from llmgw.server.fabrics.drawing import build_graph
from llmgw.server.fabrics.known import FabricMap, KnownFabric
from llmgw.server.fabrics.port_rates import OLD_S, PortRates
from llmgw.server.fabrics.problems import fabric_findings
from tests.bench.fabric import fabric_text
from tests.ctl.scripted import TOKEN, ServedAdmin
from tests.fabric.generate import fat_tree, ring
from tests.pages.fabrics import ID, Alive, add_node, changed, know, small_fabric

AUTH = {"authorization": f"Bearer {TOKEN}"}


def get(served: ServedAdmin, path: str, **headers: str) -> httpx.Response:
    return httpx.get(served.url + path, headers={**AUTH, **headers}, trust_env=False, timeout=90)


def topology(served: ServedAdmin, query: str = "", name: str = "ib-a") -> dict[str, Any]:
    answer = get(served, f"/api/v1/fabrics/{name}/topology{query}")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_the_graph_has_switches_adapters_and_cables_with_their_places(served: ServedAdmin) -> None:
    graph = topology(served)["graph"]
    assert [each["tier"] for each in graph["tiers"]] == ["spine", "leaf"]
    assert len(graph["switches"]) == 6
    assert len(graph["adapters"]) == 64
    assert len(graph["cables"]) == 80
    leaf = next(each for each in graph["switches"] if each["label"] == "leaf-1")
    assert (leaf["tier"], leaf["ports"]) == ("leaf", 65)
    mine = [each for each in graph["adapters"] if each.get("owner") == "node0001"]
    assert [(each["adapter"], each["rail"], each["known_by"]) for each in mine] == [
        ("mlx5_0", 1, "guid"),
        ("mlx5_1", 2, "guid"),
        ("mlx5_2", 3, "guid"),
        ("mlx5_3", 4, "guid"),
    ]
    guessed = next(each for each in graph["adapters"] if each.get("owner") == "node0010")
    assert guessed["known_by"] == "description"
    assert [(rail["rail"], rail["aligned"]) for rail in graph["rails"]] == [
        (1, True),
        (2, True),
        (3, True),
        (4, True),
    ]


def test_a_slow_cable_says_from_what_to_what_and_why(served: ServedAdmin) -> None:
    graph = topology(served)["graph"]
    slow = [each for each in graph["cables"] if "slow" in each]
    labels = {each["id"]: each["label"] for each in [*graph["switches"], *graph["adapters"]]}
    assert {frozenset((labels[each["a"]], labels[each["b"]])) for each in slow} == {
        frozenset(("leaf-1", "spine-1")),
        frozenset(("leaf-1", "node0006 mlx5_0")),
    }
    for each in slow:
        assert (each["rate"], each["gbps"]) == ("4xHDR", 200.0)
        assert each["slow"]["expected"] == "4xNDR"
        assert "its speed is HDR, not NDR" in each["slow"]["why"]


def test_nothing_is_drawn_over_anything_else_and_all_of_it_inside(served: ServedAdmin) -> None:
    graph = topology(served)["graph"]
    sizes = graph["sizes"]
    boxes = [
        (each["x"] - sizes["switch_width"] / 2, each["y"], sizes["switch_width"], sizes["switch_height"])
        for each in graph["switches"]
    ] + [(each["x"], each["y"], sizes["group_width"], sizes["group_height"]) for each in graph["groups"]]
    for x, y, wide, high in boxes:
        assert 0 <= x <= x + wide <= sizes["width"]
        assert 0 <= y <= y + high <= sizes["height"]
    for at, (x, y, wide, high) in enumerate(boxes):
        for other_x, other_y, other_wide, other_high in boxes[at + 1 :]:
            apart = (
                x + wide <= other_x
                or other_x + other_wide <= x
                or y + high <= other_y
                or other_y + other_high <= y
            )
            assert apart


def test_a_node_with_several_adapters_on_a_switch_is_one_group() -> None:
    graph = build_graph(FabricMap(1.0, "n", analyse(ring(switches=4, adapters=3).text())), "v")
    assert {each.tier for each in graph.tiers} == {"leaf"}
    assert sum(len(each.adapters) for each in graph.groups) == len(graph.adapters) == 12
    made = small_fabric()
    for adapter in made.adapters[:4]:
        adapter.cables.clear()
    for at, adapter in enumerate(made.adapters[:4]):
        made.join(made.switches[0], 40 + at, adapter, 1)
    graph = build_graph(FabricMap(1.0, "n", analyse(made.text())), "v")
    together = next(each for each in graph.groups if each.owner == "node0001")
    assert len(together.adapters) == 4


def test_life_is_small_and_tells_states_counters_and_traffic(served: ServedAdmin) -> None:
    view = topology(served, "?live=1")
    assert "graph" not in view
    live = view["live"]
    assert (live["id"], live["names"]) == (ID, ["ib-a"])
    assert live["version"] == topology(served)["graph"]["version"]
    ports = {(each["node"], each["adapter"]): each for each in live["ports"]}
    assert len(ports) == 24
    port = ports["node0002", "mlx5_1"]
    assert port["id"] == "H-0c42a10300000060"
    assert (port["state"], port["phys_state"], port["rate_text"]) == ("ACTIVE", "LinkUp", "400 Gb/sec (4X NDR)")
    assert port["tx_gbps"] == pytest.approx(120, rel=0.01)
    assert port["rx_gbps"] == pytest.approx(220, rel=0.01)
    assert port["counters"]["symbol_error"] == 3
    assert "link_downed" not in port["counters"], "zero says nothing"
    down = ports["node0005", "mlx5_2"]
    assert down["down"]
    assert "no cable or dead peer" in down["why"]
    assert "check the cable" in down["why"]
    assert len(json.dumps(view)) < 15_000


def test_replicas_and_managers_are_where_they_sit(served: ServedAdmin) -> None:
    live = topology(served, "?live=1")["live"]
    replicas = {each["replica_id"]: each for each in live["replicas"]}
    assert replicas["chat-large-1a2b"]["nodes"] == ["node0001", "node0002"]
    assert replicas["chat-large-1a2b"]["spans"]
    assert "spans" not in replicas["chat-small-3c4d"]
    assert [(each["role"], each["id"]) for each in live["managers"]] == [
        ("master", "H-0c42a10300000010"),
        ("standby", "H-0c42a10300000020"),
    ]
    said = "managed by node0001 mlx5_0 (priority 14); standby: node0001 mlx5_1 (priority 14)"
    assert live["managers_text"] == said
    assert said in get(served, "/admin/fabrics/ib-a").text
    assert "<b>master</b> node0001 mlx5_0 <code>" in get(served, "/admin/fabrics").text


def test_managers_that_nobody_hears_are_those_last_seen(served: ServedAdmin, alive: Alive) -> None:
    alive.known[0].silent_since = time.time()
    assert topology(served, "?live=1")["live"]["managers_text"].startswith("managers last seen: master node0001")


def test_a_port_that_is_down_is_among_what_is_wrong(served: ServedAdmin) -> None:
    problems = topology(served, "?live=1")["live"]["problems"]
    assert [each for each in problems if each.startswith("node0005: mlx5_2 port 1 is not up (DOWN, Polling)")]


def test_what_is_wrong_with_a_node_stands_once_on_the_overview(served: ServedAdmin) -> None:
    assert get(served, "/admin").text.count("port 1 of mlx5_1 is DOWN") == 1


def test_a_slow_cable_is_told_by_the_names_on_the_drawing_and_by_guids_where_these_are_shared() -> None:
    made = fat_tree(nodes=4, rails=2, leaves=2, spines=2, degraded=1)
    known = KnownFabric(id=ID, map=FabricMap(1.0, "node0001 mlx5_0:1", analyse(made.text())))
    assert slow_cables(known) == ["the cable from leaf-1[5] to spine-1[1]"]
    made.switches[3].name = made.switches[2].name
    known.map = FabricMap(1.0, "node0001 mlx5_0:1", analyse(made.text()))
    assert slow_cables(known) == [f"the cable from leaf-1[5] to spine-1 (0x{made.switches[2].guid:016x})[1]"]


def slow_cables(known: KnownFabric) -> list[str]:
    """What findings call them."""
    found = fabric_findings(known, [], 2.0)
    return [each.what.partition(" runs at ")[0] for each in found if each.check == "fabric-cable-slow"]


def test_a_port_whose_cable_is_out_is_told_though_the_map_lacks_it(served: ServedAdmin, alive: Alive) -> None:
    node = alive.fleet.nodes["node0005"]
    gone = small_fabric()
    lost = next(each for each in gone.adapters if each.name == "node0005 mlx5_2")
    switch, port, _ = lost.cables.pop(1)
    del switch.cables[port]
    gone.adapters.remove(lost)
    know(alive, gone)
    offer = changed_offer(
        node.inventory.fabrics[0], "mlx5_2 port 1 is not up (DOWN, Polling): no cable or dead peer"
    )
    node.inventory = type(node.inventory)(ports=node.inventory.ports, fabrics=[offer])
    live = topology(served, "?live=1")["live"]
    told = [each for each in live["ports"] if each["node"] == "node0005"]
    assert [each["adapter"] for each in told if "id" not in each] == ["mlx5_2"]
    assert next(each for each in live["nodes"] if each["node"] == "node0005")["unusable"] == offer.reason


def changed_offer(offer: Any, reason: str) -> Any:
    return type(offer)(name=offer.name, adapters=[], usable=False, reason=reason)


def test_another_map_is_another_version(served: ServedAdmin, alive: Alive) -> None:
    before = topology(served, "?live=1")["live"]["version"]
    assert topology(served, "?live=1")["live"]["version"] == before
    know(alive, small_fabric(), at=time.time())
    after = topology(served)
    assert after["live"]["version"] == after["graph"]["version"] != before


def test_a_fabric_that_nobody_has_mapped_is_told_with_the_reason(served: ServedAdmin, alive: Alive) -> None:
    know(alive, small_fabric(), map=None, map_error="node0001 has no ibnetdiscover; install infiniband-diags")
    view = topology(served)
    assert view["graph"] is None
    assert "install infiniband-diags" in view["live"]["map_error"]
    page = get(served, f"/admin/fabrics/{ID}")
    assert "install infiniband-diags" in page.text
    svg = get(served, f"/admin/fabrics/{ID}.svg")
    assert svg.status_code == 404
    assert "install infiniband-diags" in svg.text


def test_a_fabric_that_only_nodes_tell_of_is_found_by_its_name(served: ServedAdmin, alive: Alive) -> None:
    alive.known = []
    assert topology(served)["live"]["names"] == ["ib-a"]
    assert "none yet" in get(served, "/admin/fabrics").text


def test_unknown_and_ambiguous_names_get_a_sentence(served: ServedAdmin, alive: Alive) -> None:
    unknown = get(served, "/api/v1/fabrics/ib-z/topology")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown-fabric")
    assert "known: ib-a" in unknown.json()["message"]
    alive.known.append(KnownFabric(id="0x2", names=("ib-a",)))
    twice = get(served, "/api/v1/fabrics/ib-a/topology")
    assert (twice.status_code, twice.json()["code"]) == (409, "several-fabrics")
    assert topology(served, name="0x2")["live"]["id"] == "0x2"
    page = get(served, "/admin/fabrics/ib-a")
    assert page.status_code == 409
    assert "is the name of 2 physical fabrics" in page.text


def test_a_large_map_travels_compressed(served: ServedAdmin) -> None:
    plain = get(served, "/api/v1/fabrics/ib-a/topology", **{"accept-encoding": "identity"})
    packed = get(served, "/api/v1/fabrics/ib-a/topology", **{"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.json()["graph"] == plain.json()["graph"]
    assert int(packed.headers["content-length"]) * 5 < int(plain.headers["content-length"])


def test_ten_thousand_adapters_are_built_in_time() -> None:
    analysis = analyse(fabric_text(10_000))
    begun = time.process_time()
    graph = build_graph(FabricMap(1.0, "n", analysis), "v")
    assert time.process_time() - begun < 5
    assert len(graph.adapters) == 10_000


def test_without_a_script_there_is_an_svg_and_a_table(served: ServedAdmin) -> None:
    page = get(served, "/admin/fabrics/ib-a").text
    plain = page[page.index("<noscript>") :]
    assert f'<img class="plain" src="/admin/fabrics/{ID}.svg"' in plain
    assert "no cable or dead peer" in plain
    svg = get(served, f"/admin/fabrics/{ID}.svg")
    assert svg.headers["content-type"].startswith("image/svg+xml")
    assert "4xHDR of 4xNDR" in svg.text
    assert "<script" not in svg.text


def test_what_a_fabric_calls_itself_is_text(served: ServedAdmin, alive: Alive) -> None:
    known = alive.known[0]
    known.problems.append("<script>alert(1)</script>")
    for path in ("/admin", "/admin/fabrics", "/admin/fabrics/ib-a"):
        page = get(served, path).text
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>" not in page


def test_the_host_name_that_nvidia_puts_before_a_switch_s_kind_is_its_label() -> None:
    assert short_name("MF0;sw-leaf-001:MQM9700/U1") == "sw-leaf-001"
    assert short_name("Quantum Mellanox Technologies") == "Quantum Mellanox Technologies"


def port(tx: int | None, rx: int | None = 0) -> Port:
    return Port(adapter="mlx5_0", port=1, counters={"port_xmit_data": tx, "port_rcv_data": rx})


def test_rates_come_from_the_difference_between_heartbeats_in_words_of_four_bytes() -> None:
    rates = PortRates()
    rates.take("a", [port(10**12)], 100.0)
    assert rates.rate("a", "mlx5_0", 1, 100.0).tx_gbps is None, "one heartbeat is no rate"
    rates.take("a", [port(10**12 + 25 * 10**9 // 4 * 5)], 105.0)
    assert rates.rate("a", "mlx5_0", 1, 105.0).tx_gbps == 200.0
    assert rates.rate("a", "mlx5_0", 1, 105.0).rx_gbps == 0.0
    assert rates.rate("a", "mlx5_0", 1, 106.0 + OLD_S).tx_gbps is None, "a silent node's rate is unknown"
    assert rates.rate("b", "mlx5_0", 1, 105.0).tx_gbps is None
    rates.forget("a")
    assert rates.rate("a", "mlx5_0", 1, 105.0).tx_gbps is None


@pytest.mark.parametrize(
    ("before", "after"), [(5, 4), (None, 9), (9, None), (2**32 - 1, 2**32 - 1), (2**64 - 1, 0)]
)
def test_a_counter_that_was_reset_is_unknown_or_stands_still_tells_no_rate(
    before: int | None, after: int | None
) -> None:
    rates = PortRates()
    rates.take("a", [port(before)], 0.0)
    rates.take("a", [port(after)], 5.0)
    assert rates.rate("a", "mlx5_0", 1, 5.0).tx_gbps is None


def test_heartbeats_that_follow_at_once_do_not_disturb_a_rate() -> None:
    rates = PortRates()
    rates.take("a", [port(0)], 0.0)
    rates.take("a", [port(125_000_000)], 0.01)
    rates.take("a", [port(125_000_000 * 10)], 10.0)
    assert rates.rate("a", "mlx5_0", 1, 10.0).tx_gbps == pytest.approx(4.0)


def test_a_vanished_node_is_not_alive(alive: Alive, served: ServedAdmin) -> None:
    add_node(alive, small_fabric(), "node0007")
    assert "node0007" in {each["node"] for each in topology(served, "?live=1")["live"]["nodes"]}
    del alive.fleet.nodes["node0007"]
    assert "node0007" not in {each["node"] for each in topology(served, "?live=1")["live"]["nodes"]}
    assert changed(port(1), state="DOWN").state == "DOWN"
