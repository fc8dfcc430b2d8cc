"""A fabric is offered whole or not at all, and the reason names adapter, port and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.config.agent import FabricDeclaration
from llmgw.hardware.counters import counter_text
from llmgw.hardware.fabrics import offer_fabrics, why_port_unusable
from llmgw.messages.agent import FabricOffer, Port
from llmgw.messages.findings import Finding


def port(adapter: str, number: int = 1, **facts: Any) -> Port:
    known: dict[str, Any] = {
        "link_layer": "InfiniBand",
        "state": "ACTIVE",
        "phys_state": "LinkUp",
        "rate_gbps": 400.0,
        "rate_text": "400 Gb/sec (4X NDR)",
    }
    return Port(adapter=adapter, port=number, **(known | facts))


def offer(ports: list[Port], *hcas: str, rate_gbps: float | None = None) -> tuple[FabricOffer, list[Finding]]:
    declared = FabricDeclaration(name="ib-a", hcas=list(hcas), rate_gbps=rate_gbps)
    (only,), findings = offer_fabrics([declared], ports)
    return only, findings


def test_a_whole_fabric_is_offered_with_its_ports_as_nccl_names_them() -> None:
    only, findings = offer([port("mlx5_0"), port("mlx5_1"), port("mlx5_2")], "mlx5_1", "mlx5_0")
    assert (only.usable, only.reason, only.rate_gbps, findings) == (True, None, 400.0, [])
    assert only.adapters == ["mlx5_1:1", "mlx5_0:1"]


def test_a_missing_adapter_is_named_with_those_that_exist() -> None:
    only, (finding,) = offer([port("mlx5_0"), port("mlx5_2")], "mlx5_0", "mlx5_7")
    assert (only.usable, only.adapters) == (False, [])
    assert "adapter mlx5_7 is not there (this node has mlx5_0, mlx5_2)" in (only.reason or "")
    assert (finding.check, finding.severity, finding.where) == ("fabric-adapter-missing", "error", "ib-a mlx5_7")
    assert "agent.yaml" in finding.remedy


def test_a_node_without_adapters_says_so() -> None:
    only, _ = offer([], "mlx5_0")
    assert "this node has none" in (only.reason or "")


def test_a_missing_port_of_an_adapter_is_named() -> None:
    only, _ = offer([port("mlx5_0")], "mlx5_0:2")
    assert "mlx5_0 has no port 2 (it has 1)" in (only.reason or "")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"state": "INIT"}, "mlx5_0 port 1 is up, but no subnet manager"),
        ({"state": "ARMED"}, "not finished configuring"),
        ({"state": "DOWN", "phys_state": "Polling"}, "no cable or dead peer"),
        ({"state": "DOWN", "phys_state": "Disabled"}, "ibportstate -C mlx5_0 -P 1"),
        ({"state": "DOWN", "phys_state": "Disabled", "link_layer": "Ethernet"}, "ip link"),
        ({"state": "DOWN", "phys_state": "Sleep"}, "the link does not come up"),
        ({"state": "DOWN", "phys_state": None, "link_layer": "Ethernet"}, "network interface is down"),
        ({"state": None}, "does not say its state"),
        ({"link_layer": "Unknown"}, "link layer Unknown"),
        ({"link_layer": None}, "link layer unknown"),
    ],
)
def test_a_port_that_carries_no_traffic_says_why_and_what_to_do(facts: dict[str, Any], words: str) -> None:
    other = port("mlx5_1", link_layer="Ethernet" if facts.get("link_layer") == "Ethernet" else "InfiniBand")
    only, findings = offer([port("mlx5_0", **facts), other], "mlx5_0", "mlx5_1")
    assert not only.usable
    assert words in (only.reason or "")
    assert [finding.severity for finding in findings] == ["error"]
    assert findings[0].remedy


def test_every_problem_of_a_fabric_is_said_at_once() -> None:
    only, findings = offer([port("mlx5_0", state="INIT")], "mlx5_0", "mlx5_1")
    assert len(findings) == 2
    assert "mlx5_0 port 1" in (only.reason or "")
    assert "mlx5_1 is not there" in (only.reason or "")


def test_what_is_wrong_with_the_other_ports_of_a_fabric_that_is_not_offered_is_said_too() -> None:
    ports = [
        port("mlx5_0", state="DOWN", phys_state="Polling"),
        port("mlx5_1", rate_gbps=100.0, rate_text="100 Gb/sec (1X NDR)"),
        port("mlx5_2", pkeys=[0x7FFF]),
        port("mlx5_3", counters={"link_downed": 255}),
        port("mlx5_4", link_layer="Ethernet", rate_gbps=25.0),
    ]
    whole = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    only, findings = offer(ports, *whole)
    expected = ["fabric-port-down", "fabric-slow", "fabric-pkey", "fabric-counters"]
    assert [finding.check for finding in findings] == expected
    assert (only.usable, only.reason) == (False, findings[0].what.partition(": ")[2] + ": " + findings[0].remedy)
    # What does not belong here is not measured by those that do.
    _, findings = offer(ports, *whole, "mlx5_4")
    assert [finding.check for finding in findings] == [expected[0], "fabric-mixed", *expected[1:]]


def test_an_adapter_is_usable_by_its_active_ports() -> None:
    ports = [port("mlx4_0", 1, state="DOWN", phys_state="Polling"), port("mlx4_0", 2)]
    only, findings = offer(ports, "mlx4_0")
    assert (only.usable, only.adapters, findings) == (True, ["mlx4_0:2"], [])


def test_of_an_adapter_without_active_ports_the_one_nearest_to_working_is_named() -> None:
    ports = [port("mlx4_0", 1, state="DOWN", phys_state="Polling"), port("mlx4_0", 2, state="INIT")]
    only, (finding,) = offer(ports, "mlx4_0")
    assert not only.usable
    assert "mlx4_0 port 2 is up, but no subnet manager" in finding.what


def test_an_ethernet_port_among_infiniband_ports_is_refused() -> None:
    only, (finding,) = offer(
        [port("mlx5_0"), port("mlx5_bond_0", link_layer="Ethernet")], "mlx5_0", "mlx5_bond_0"
    )
    assert not only.usable
    assert "mlx5_bond_0 port 1 is an Ethernet port among InfiniBand ports" in (only.reason or "")
    assert finding.check == "fabric-mixed"


@pytest.mark.parametrize("state", ["ACTIVE", "DOWN"])
def test_an_ethernet_virtual_function_among_infiniband_ports_is_named_as_one_whatever_its_state(
    state: str,
) -> None:
    function = port("mlx5_8", link_layer="Ethernet", virtual=True, state=state)
    only, (finding,) = offer([port("mlx5_0"), function], "mlx5_0", "mlx5_8")
    assert not only.usable
    assert finding.what.endswith("mlx5_8 port 1 is an Ethernet virtual function among InfiniBand ports")
    assert "take it out of hcas" in finding.remedy


def test_what_else_is_wrong_is_said_beside_the_ethernet_port() -> None:
    ports = [port("mlx4_0", 1, state="INIT"), port("mlx4_0", 2, link_layer="Ethernet", state="DOWN")]
    only, findings = offer(ports, "mlx4_0:1", "mlx4_0:2")
    assert [finding.check for finding in findings] == ["fabric-no-subnet-manager", "fabric-mixed"]
    assert "mlx4_0 port 1 is up, but no subnet manager" in (only.reason or "")


def test_the_other_port_of_an_adapter_may_be_an_idle_ethernet_port() -> None:
    ports = [port("mlx4_0", 1), port("mlx4_0", 2, link_layer="Ethernet", state="DOWN")]
    only, findings = offer(ports, "mlx4_0")
    assert (only.usable, only.adapters, findings) == (True, ["mlx4_0:1"], [])


def test_a_limited_member_of_its_partition_is_a_warning_and_a_full_one_is_none() -> None:
    only, (finding,) = offer([port("mlx5_0", pkeys=[0x7FFF]), port("mlx5_1", pkeys=[0xFFFF])], "mlx5_0", "mlx5_1")
    assert (only.usable, finding.check, finding.severity) == (True, "fabric-pkey", "warning")
    assert "mlx5_0 port 1 is a limited member of its first partition (0x7fff)" in finding.what
    assert "0xffff" in finding.remedy
    assert finding.what in (only.reason or "")
    assert offer([port("mlx5_0", link_layer="Ethernet", pkeys=[0x7FFF])], "mlx5_0")[1] == []


def test_full_counters_are_worth_knowing_and_no_reservation() -> None:
    counters = {"link_downed": 255, "symbol_error": 65534, "port_rcv_data": None, "port_rcv_errors": 65535}
    only, (finding,) = offer([port("mlx5_0", counters=counters)], "mlx5_0")
    assert (only.usable, only.reason, finding.severity) == (True, None, "info")
    assert finding.what.endswith("at their end: link_downed 255 or more, port_rcv_errors 65535 or more")
    assert "perfquery -C mlx5_0 -P 1 -R" in finding.remedy


def test_a_counter_reads_as_a_number_as_the_least_or_as_unknown() -> None:
    assert counter_text("link_downed", 254) == "254"
    assert counter_text("link_downed", 255) == "255 or more"
    assert counter_text("local_link_integrity_errors", 15) == "15 or more"
    assert counter_text("out_of_sequence", 255) == "255", "of 64 bits"
    assert counter_text("link_downed", None) == "unknown"


def test_a_fabric_of_ethernet_ports_is_a_fabric() -> None:
    only, _ = offer(
        [port("mlx5_0", link_layer="Ethernet"), port("mlx5_1", link_layer="Ethernet")], "mlx5_0", "mlx5_1"
    )
    assert only.usable


def test_the_rate_is_that_of_the_slowest_link_and_a_slow_one_is_a_warning() -> None:
    slow = port("mlx5_1", rate_gbps=100.0, rate_text="100 Gb/sec (4X EDR)")
    only, (finding,) = offer([port("mlx5_0"), slow], "mlx5_0", "mlx5_1", rate_gbps=400)
    assert (only.usable, only.rate_gbps) == (True, 100.0)
    assert (finding.check, finding.severity, finding.where) == ("fabric-slow", "warning", "ib-a mlx5_1")
    assert "below the 400 Gb/s declared" in finding.what
    assert "mlx5_1 port 1" in (only.reason or "")


def test_without_a_declared_rate_a_link_is_measured_by_its_neighbours() -> None:
    _, (finding,) = offer([port("mlx5_0"), port("mlx5_1", rate_gbps=200.0)], "mlx5_0", "mlx5_1")
    assert "below the 400 Gb/s that its neighbour has" in finding.what


def test_an_unknown_rate_is_not_slow() -> None:
    only, findings = offer([port("mlx5_0", rate_gbps=None)], "mlx5_0", rate_gbps=400)
    assert (only.usable, only.rate_gbps, findings) == (True, None, [])


def test_a_port_named_twice_counts_once() -> None:
    only, _ = offer([port("mlx5_0")], "mlx5_0", "mlx5_0:1")
    assert only.adapters == ["mlx5_0:1"]


def test_a_port_that_recovers_on_the_link_layer_still_carries_traffic() -> None:
    assert why_port_unusable(port("mlx5_0", state="ACTIVE_DEFER")) is None


def test_fabrics_are_offered_in_the_order_declared() -> None:
    declared = [FabricDeclaration(name="ib-b", hcas=["mlx5_1"]), FabricDeclaration(name="ib-a", hcas=["mlx5_9"])]
    offers, _ = offer_fabrics(declared, [port("mlx5_1")])
    assert [(each.name, each.usable) for each in offers] == [("ib-b", True), ("ib-a", False)]
