"""What a node needs to ask its fabric: the tools, and the device of each port."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmgw.config.agent import AgentConfig, Discovery, FabricDeclaration
from llmgw.hardware.fabric_tools import device_problem, fabric_tool_findings, find_tool, tool_problem
from llmgw.hardware.ports import read_ports
from llmgw.messages.findings import Finding
from llmgw.sim.hardware import SimulatedHardware, write_hardware
from tests.hardware.nodes import write_program


def make_devices(root: Path, *ports: tuple[str, int]) -> None:
    for index, (adapter, port) in enumerate(ports):
        folder = root / "sys" / "class" / "infiniband_mad" / f"umad{index}"
        folder.mkdir(parents=True)
        (folder / "ibdev").write_text(adapter + "\n")
        (folder / "port").write_text(f"{port}\n")
        (root / "dev" / "infiniband").mkdir(parents=True, exist_ok=True)
        (root / "dev" / "infiniband" / f"umad{index}").write_text("")


def test_a_tool_that_is_not_there_says_what_to_install() -> None:
    problem = tool_problem("no-such-tool", "discovery.saquery")
    assert problem is not None
    assert problem[0] == "no-such-tool is not installed (it is neither on PATH nor in /usr/sbin)"
    assert "apt-get install infiniband-diags" in problem[1]


def test_a_path_that_is_wrong_says_which_key_to_correct(tmp_path: Path) -> None:
    problem = tool_problem(str(tmp_path / "gone"), "discovery.saquery")
    assert problem is not None
    assert "does not exist" in problem[0]
    assert "correct discovery.saquery in agent.yaml" in problem[1]


def test_a_file_that_may_not_be_run_says_so(tmp_path: Path) -> None:
    tool = write_program(tmp_path / "saquery", "exit 0")
    assert tool_problem(str(tool), "discovery.saquery") is None
    tool.chmod(0o644)
    problem = tool_problem(str(tool), "discovery.saquery")
    assert problem is not None
    assert problem[1].startswith(f"chmod a+rx {tool}")
    assert tool_problem(str(tmp_path), "discovery.saquery") is not None


def test_a_tool_is_found_where_the_path_of_an_ordinary_user_does_not_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_tool("ldconfig") in ("/usr/sbin/ldconfig", "/sbin/ldconfig")


def test_a_port_whose_device_may_be_opened_has_no_problem(tmp_path: Path) -> None:
    make_devices(tmp_path, ("mlx5_0", 1), ("mlx5_1", 1))
    assert device_problem(tmp_path, "mlx5_1", 1) is None
    assert device_problem(tmp_path, "mlx5_9", 1) is None, "of what the kernel does not say, the tool will tell"
    assert device_problem(None, "mlx5_0", 1) is None
    assert device_problem(tmp_path / "empty", "mlx5_0", 1) is None


def test_a_device_of_another_user_says_which_and_how_to_allow_it(tmp_path: Path) -> None:
    make_devices(tmp_path, ("mlx5_0", 1), ("mlx5_1", 1))
    problem = device_problem(tmp_path, "mlx5_1", 1, may_open=lambda device: device.name != "umad1")
    assert problem is not None
    assert problem[0] == ("this user may not open /dev/infiniband/umad1, through which mlx5_1 port 1 is asked")
    assert "udev rule" in problem[1]


def test_a_device_that_was_not_given_to_a_container_says_so(tmp_path: Path) -> None:
    make_devices(tmp_path, ("mlx5_0", 1))
    (tmp_path / "dev" / "infiniband" / "umad0").unlink()
    problem = device_problem(tmp_path, "mlx5_0", 1)
    assert problem is not None
    assert "there is no /dev/infiniband/umad0" in problem[0]
    assert "--device=/dev/infiniband" in problem[1]


@pytest.fixture
def node(tmp_path: Path) -> SimulatedHardware:
    return write_hardware(tmp_path / "hw", adapters=2)


def findings_of(node: SimulatedHardware, tools: Path, *hcas: str, **tool: str) -> list[Finding]:
    discovery: dict[str, Any] = {"ib_root": str(node.ib_root)}
    for name in ("ibnetdiscover", "saquery"):
        discovery[name] = tool.get(name) or str(write_program(tools / name, "exit 0"))
    fabrics = [FabricDeclaration(name="ib-a", hcas=list(hcas))] if hcas else []
    config = AgentConfig(
        node_id="node01", server="https://127.0.0.1:1", fabrics=fabrics, discovery=Discovery(**discovery)
    )
    return fabric_tool_findings(config, read_ports(node.ib_root))


def test_a_node_that_can_ask_its_fabric_has_no_finding(node: SimulatedHardware, tmp_path: Path) -> None:
    assert findings_of(node, tmp_path, "mlx5_0", "mlx5_1:1") == []


def test_each_missing_tool_is_a_warning_that_names_what_is_lost(node: SimulatedHardware, tmp_path: Path) -> None:
    found = findings_of(node, tmp_path, "mlx5_0", ibnetdiscover="no-such-tool")
    assert [(each.check, each.severity, each.where) for each in found] == [
        ("fabric-tools", "warning", "no-such-tool")
    ]
    assert "infiniband-diags" in found[0].remedy
    assert "map" in found[0].why


def test_one_port_whose_device_is_there_is_enough(node: SimulatedHardware, tmp_path: Path) -> None:
    make_devices(node.directory, ("mlx5_0", 1), ("mlx5_1", 1))
    (node.directory / "dev" / "infiniband" / "umad0").unlink()
    assert findings_of(node, tmp_path, "mlx5_0", "mlx5_1") == []
    (node.directory / "dev" / "infiniband" / "umad1").unlink()
    (found,) = findings_of(node, tmp_path, "mlx5_0", "mlx5_1")
    assert (found.check, found.severity) == ("fabric-access", "warning")


def test_without_an_infiniband_fabric_nothing_is_missing(node: SimulatedHardware, tmp_path: Path) -> None:
    assert findings_of(node, tmp_path, ibnetdiscover="no-such-tool") == []
    roce = write_hardware(tmp_path / "roce", adapters=1, link_layer="Ethernet")
    assert findings_of(roce, tmp_path, "mlx5_0", ibnetdiscover="no-such-tool") == []
