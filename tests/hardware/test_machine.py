"""What a machine must give engines so that they can use its adapters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from llmgw.config.agent import FabricDeclaration
from llmgw.hardware.gpus import read_gpus
from llmgw.hardware.inventory import NodeReader
from llmgw.hardware.machine import limits_of, machine_root, rdma_findings
from llmgw.hardware.ports import read_ports
from llmgw.hardware.unified_memory import system_memory_mib
from llmgw.messages.agent import Port
from llmgw.sim.hardware import HardwareError, set_gpu, set_machine, write_hardware
from llmgw.sim.hardware_machine import MachineState
from tests.hardware.nodes import config_of, discovery_of

IB = FabricDeclaration(name="ib-a", hcas=["mlx5_0", "mlx5_1"])
PLANTED = {
    "ok": [],
    "memlock": ["memlock"],
    "files": ["open-files"],
    "no-devices": ["rdma-devices"],
    "no-gpudirect": ["gpudirect"],
}


@pytest.mark.parametrize("state", get_args(MachineState))
def test_exactly_what_was_taken_away_is_found_and_only_where_there_is_a_fabric(
    tmp_path: Path, state: MachineState
) -> None:
    node = write_hardware(tmp_path / "hw", gpus=2, adapters=2)
    set_machine(node.directory, state)
    findings = NodeReader(config_of(node, fabrics=[IB])).read().findings
    assert [finding.check for finding in findings] == PLANTED[state]
    assert all(finding.why and finding.remedy for finding in findings)
    assert [finding.check for finding in NodeReader(config_of(node)).read().findings] == ["fabric-undeclared"]
    set_machine(node.directory, "ok")
    assert NodeReader(config_of(node, fabrics=[IB])).read().findings == []


def test_the_machine_of_a_tree_is_this_one_or_a_simulated_one_or_unknown(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw")
    assert machine_root(Path("/sys/class/infiniband")) == Path("/")
    assert machine_root(node.ib_root) == node.directory
    assert machine_root(tmp_path / "saved") is None
    assert rdma_findings(None, [Port(adapter="mlx5_0", port=1)], []) == []


def test_limits_are_read_as_the_kernel_writes_them() -> None:
    limits = limits_of(Path("/"))
    assert limits == limits_of(Path("/"), os.getpid())
    assert set(limits) >= {"Max open files", "Max locked memory", "Max cpu time"}


@pytest.mark.parametrize(
    ("locked", "severity"),
    [(None, None), (64 * 1024**3, None), (8 * 1024**3, "warning"), (65536, "error")],
)
def test_little_memory_to_lock_is_a_warning_and_next_to_none_an_error(
    tmp_path: Path, locked: int | None, severity: str | None
) -> None:
    node = write_hardware(tmp_path / "hw", adapters=1)
    limits = {"Max locked memory": (locked, locked)}
    found = rdma_findings(node.directory, read_ports(node.ib_root), [], limits=limits)
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_open_kernel_modules_need_no_peer_memory(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=1, adapters=2)
    set_machine(node.directory, "no-gpudirect")
    version = node.directory / "proc/driver/nvidia/version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01\n")
    config = config_of(node, fabrics=[IB])
    assert NodeReader(config).read().findings == []
    (node.directory / "proc/sys/kernel/osrelease").write_text("5.4.0-200-generic\n")
    (finding,) = NodeReader(config).read().findings
    assert "no dma-buf with this kernel" in finding.what


def test_unified_memory_is_the_machines_and_marked(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=1, gpu_name="NVIDIA GB10", unified_memory=True)
    reading = read_gpus(discovery_of(node), system_memory=lambda: (122_570, 9_000))
    (gpu,) = reading.gpus
    assert (gpu.unified_memory, gpu.memory_total_mib, gpu.memory_used_mib) == (True, 122_570, 9_000)
    assert gpu.usable
    assert reading.findings == []
    total, used = system_memory_mib()
    assert 0 < used < total


def test_a_fatal_xid_takes_a_gpu_out_of_use_until_it_is_mended(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=4, adapters=0)
    reader = NodeReader(config_of(node))
    set_gpu(node.directory, 1, "xid")
    read = reader.read()
    assert [gpu.usable for gpu in read.gpus] == [True, False, True, True]
    (finding,) = read.findings
    assert (finding.check, finding.where) == ("gpu-unusable", "node01 GPU 1")
    assert "Xid 119" in finding.what
    set_gpu(node.directory, 1, "ok")
    assert reader.read().findings == []


def test_a_driver_that_is_installed_later_is_seen(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=2, adapters=0)
    away = node.nvidia_smi.rename(tmp_path / "elsewhere")
    reader = NodeReader(config_of(node))
    before = reader.read()
    assert ([gpu.uuid for gpu in before.gpus], [f.check for f in before.findings]) == ([], ["gpu-driver"])
    away.rename(node.nvidia_smi)
    after = reader.read()
    assert [gpu.uuid for gpu in after.gpus] == node.gpu_uuids
    assert after.gpus[0].nvlink_peers == [1]
    assert after.findings == []


def test_an_unknown_state_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw")
    with pytest.raises(HardwareError, match="ok, memlock, files, no-devices, no-gpudirect"):
        set_machine(node.directory, "burnt")  # type: ignore[arg-type]
