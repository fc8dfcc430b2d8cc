"""Everything that a node has, from one simulated node, as the messages carry it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from llmgw.config.agent import AgentConfig, FabricDeclaration
from llmgw.hardware.inventory import NodeReader
from llmgw.messages.agent import PORTS_PER_NODE_MAX, Inventory
from llmgw.sim.hardware import set_gpu, set_port, write_hardware
from tests.hardware.nodes import config_of, discovery_of

IB_A = FabricDeclaration(name="ib-a", hcas=["mlx5_0", "mlx5_1"], rate_gbps=400)


def test_a_healthy_node_has_everything_and_no_findings(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=8, adapters=2)
    read = NodeReader(config_of(node, fabrics=[IB_A])).read()
    assert (len(read.gpus), len(read.ports), read.findings) == (8, 2, [])
    assert [(fabric.name, fabric.usable, fabric.rate_gbps) for fabric in read.fabrics] == [("ib-a", True, 400.0)]
    inventory = Inventory(gpus=read.gpus, ports=read.ports, fabrics=read.fabrics, findings=read.findings)
    assert msgspec.json.decode(msgspec.json.encode(inventory), type=Inventory) == inventory


def test_exactly_the_planted_faults_are_found_and_carry_the_nodes_name(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=8, adapters=2)
    set_port(node.directory, "mlx5_1", "down")
    set_gpu(node.directory, 5, "reset")
    read = NodeReader(config_of(node, fabrics=[IB_A])).read()
    assert [gpu.index for gpu in read.gpus if not gpu.usable] == [5]
    assert [fabric.usable for fabric in read.fabrics] == [False]
    assert [(finding.check, finding.where) for finding in read.findings] == [
        ("gpu-unusable", "node01 GPU 5"),
        ("fabric-port-down", "node01 ib-a mlx5_1"),
    ]


def test_active_ports_without_any_declared_fabric_are_mentioned(tmp_path: Path) -> None:
    read = NodeReader(config_of(write_hardware(tmp_path / "hw", gpus=1))).read()
    (finding,) = read.findings
    assert read.fabrics == []
    assert (finding.check, finding.severity) == ("fabric-undeclared", "info")


def test_a_node_with_nothing_is_read_without_an_error(tmp_path: Path) -> None:
    config = AgentConfig(
        node_id="node01",
        server="https://127.0.0.1:8443",
        discovery={  # type: ignore[arg-type]
            "nvidia_smi": str(tmp_path / "nvidia-smi"),
            "ib_root": str(tmp_path / "ib"),
        },
        fabrics=[IB_A],
    )
    read = NodeReader(config).read()
    (fabric,) = read.fabrics
    assert (read.gpus, read.ports, fabric.usable) == ([], [], False)
    assert {finding.check for finding in read.findings} == {"gpu-driver", "fabric-adapter-missing"}


def test_of_too_many_ports_those_of_declared_fabrics_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "ib"
    for number in range(PORTS_PER_NODE_MAX + 10):
        (root / f"mlx5_{number}" / "ports" / "1").mkdir(parents=True)
    last = f"mlx5_{PORTS_PER_NODE_MAX + 9}"
    node = write_hardware(tmp_path / "hw", gpus=1)
    config = AgentConfig(
        node_id="node01",
        server="https://127.0.0.1:8443",
        discovery=discovery_of(node).model_copy(update={"ib_root": str(root)}),
        fabrics=[FabricDeclaration(name="ib-a", hcas=[last])],
    )
    read = NodeReader(config).read()
    assert len(read.ports) == PORTS_PER_NODE_MAX
    assert read.ports[-1].adapter == last
    assert "port-count" in {finding.check for finding in read.findings}
