"""What is asked seldom: how GPUs are joined, CUDA's version, and whether nvidia-smi and NVML agree."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from llmgw.config.agent import Discovery
from llmgw.hardware.gpus import GpuReading, read_gpus
from llmgw.hardware.inventory import NodeReader
from llmgw.hardware.nvidia_smi import GpuTable
from llmgw.hardware.slow_facts import BEAT_S, SlowFacts, SlowReader, compare, with_slow_facts
from llmgw.hardware.topo import Topology, parse_topology
from llmgw.messages.agent import Gpu
from llmgw.sim.hardware import set_gpu, write_hardware
from tests.hardware.nodes import config_of, discovery_of, write_program
from tests.patience import PATIENCE

WAIT_S = 30.0


def gpus(count: int, name: str = "H100") -> list[Gpu]:
    return [Gpu(index=n, uuid=f"GPU-{n}", name=name) for n in range(count)]


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s * PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("nvlink", "peers"),
    [
        ("switch", [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]),
        ("pairs", [[1], [0], [3], [2]]),
        ("none", [[]] * 4),
    ],
)
def test_a_simulated_node_tells_how_its_gpus_are_joined(
    tmp_path: Path, nvlink: str, peers: list[list[int]]
) -> None:
    node = write_hardware(tmp_path / "hw", gpus=4, adapters=2, nvlink=nvlink)  # type: ignore[arg-type]
    read = NodeReader(config_of(node)).read()
    assert [gpu.nvlink_peers for gpu in read.gpus] == peers
    assert {gpu.nvswitch for gpu in read.gpus} == ({True} if nvlink == "switch" else {None})
    assert {gpu.cuda_version for gpu in read.gpus} == {"13.1"}
    assert [gpu.nearest_adapters for gpu in read.gpus] == [["mlx5_0"], ["mlx5_1"], *[["mlx5_0", "mlx5_1"]] * 2]
    assert [gpu.numa_node for gpu in read.gpus] == [0] * 4
    assert [finding.check for finding in read.findings] == ["fabric-undeclared"]


def test_near_adapters_are_found_in_the_pci_tree_where_nvidia_smi_has_no_table(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=6, adapters=2)
    (node.directory / "topology").write_text("not supported\n")
    read = NodeReader(config_of(node)).read()
    assert [gpu.nvlink_peers for gpu in read.gpus] == [None] * 6
    assert [gpu.nearest_adapters for gpu in read.gpus] == [
        *(["mlx5_0"], ["mlx5_1"], ["mlx5_0", "mlx5_1"], ["mlx5_0", "mlx5_1"], [], []),
    ]
    (unknown,) = [finding for finding in read.findings if finding.check == "gpu-topology"]
    assert unknown.severity == "info"
    assert "how the GPUs are joined is not known" in unknown.what


def test_facts_are_asked_once_and_again_at_the_beat(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=2)
    asked = tmp_path / "asked"
    counting = write_program(
        tmp_path / "smi", f'case $1 in topo) echo x >>{asked};; esac\nexec {node.nvidia_smi} "$@"'
    )
    now = [0.0]
    reader = SlowReader(clock=lambda: now[0])
    discovery = Discovery(nvidia_smi=str(counting))
    reading = read_gpus(discovery)
    for _ in range(3):
        assert reader.read(reading, discovery, wait_s=WAIT_S).topology.gpus == [0, 1]
    assert asked.read_text() == "x\n"
    now[0] = BEAT_S + 1
    assert reader.read(reading, discovery, wait_s=WAIT_S).topology.gpus == [0, 1]
    until(lambda: asked.read_text() == "x\nx\n")
    fewer = GpuReading(gpus=reading.gpus[:1], source=reading.source)
    until(lambda: reader.read(fewer, discovery, wait_s=WAIT_S).topology.gpus == [0, 1])
    assert asked.read_text() == "x\nx\nx\n"


def test_a_driver_that_hangs_costs_one_wait_and_no_more(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=1)
    release = threading.Event()

    def hang() -> Topology:
        release.wait(30)
        return Topology()

    reader = SlowReader(nvml_topology=hang)
    reading = GpuReading(gpus=read_gpus(discovery_of(node)).gpus, source="nvml")
    bare = Discovery(nvidia_smi="nvidia-smi-of-nobody")
    try:
        assert reader.read(reading, bare, wait_s=0.1) == SlowFacts()
        began = time.monotonic()
        assert reader.read(reading, bare, wait_s=20) == SlowFacts()
        assert time.monotonic() - began < 5
    finally:
        release.set()


def test_nvml_and_nvidia_smi_that_agree_are_no_finding_and_that_differ_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = write_hardware(tmp_path / "hw", gpus=3)
    monkeypatch.setenv("PATH", str(node.directory), prepend=":")
    listed = read_gpus(discovery_of(node)).gpus
    reading = GpuReading(gpus=listed, source="nvml")
    assert SlowReader().read(reading, Discovery(), wait_s=WAIT_S).findings == []
    set_gpu(node.directory, 1, "reset")
    (finding,) = SlowReader().read(reading, Discovery(), wait_s=WAIT_S).findings
    assert (finding.check, finding.severity) == ("gpu-readers-differ", "warning")
    assert (
        "nvidia-smi says of GPU 1, which NVML calls whole: the driver asks for a recovery action" in finding.what
    )


def test_gpus_that_only_one_of_the_two_lists_are_told() -> None:
    findings = compare(gpus(2), GpuTable(gpus=gpus(3)[1:]))
    assert [finding.what for finding in findings] == [
        "NVML lists GPU 0 (GPU-0), and nvidia-smi does not",
        "nvidia-smi lists GPU 2 (GPU-2), and NVML does not",
    ]


def test_a_gpu_that_lost_its_nvlinks_takes_no_new_shard(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=4, adapters=0)
    set_gpu(node.directory, 2, "unlinked")
    read = NodeReader(config_of(node)).read()
    assert [gpu.usable for gpu in read.gpus] == [True, True, False, True]
    (finding,) = read.findings
    assert (finding.check, finding.where, finding.severity) == ("gpu-unusable", "node01 GPU 2", "error")
    assert "nvidia-smi nvlink -s -i 2" in finding.remedy


def test_a_card_of_another_kind_beside_linked_ones_is_whole() -> None:
    # A DGX Station has four linked GPUs and one for the screen.
    rows = "".join(
        f"GPU{one}\t"
        + "\t".join("X" if one == two else "SYS" if 4 in (one, two) else "NV4" for two in range(5))
        + "\n"
        for one in range(5)
    )
    topology = parse_topology("\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\n" + rows)
    display = msgspec.structs.replace(gpus(5)[4], name="DGX Display")
    told, findings = with_slow_facts([*gpus(4), display], SlowFacts(topology=topology))
    assert ([gpu.usable for gpu in told], findings) == ([True] * 5, [])
    told, _ = with_slow_facts(gpus(5), SlowFacts(topology=topology))
    assert [gpu.usable for gpu in told] == [True, True, True, True, False]
