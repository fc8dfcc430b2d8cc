"""`llmgw doctor --nvidia-smi PROG --ib-root DIR`: the hardware of a machine that is not configured yet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.sim.hardware import SimulatedHardware, set_gpu, set_machine, set_port, write_hardware


def doctor(hardware: SimulatedHardware, cwd: Path, *more: object) -> tuple[int, Any]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "llmgw", "doctor", "-o", "json"),
            *("--nvidia-smi", str(hardware.nvidia_smi), "--ib-root", str(hardware.ib_root), *map(str, more)),
        ],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


PLANTS: list[tuple[Callable[[Path], None], int, list[tuple[str, str]]]] = [
    (lambda d: None, 0, []),
    (lambda d: set_gpu(d, 2, "reset"), 2, [("gpu-unusable", "GPU 2")]),
    (lambda d: set_port(d, "mlx5_1", "down"), 2, [("fabric-port-down", "infiniband mlx5_1")]),
    (lambda d: set_port(d, "mlx5_1", "init"), 2, [("fabric-no-subnet-manager", "infiniband mlx5_1")]),
    (lambda d: set_port(d, "mlx5_1", "slow"), 1, [("fabric-slow", "infiniband mlx5_1")]),
    (lambda d: set_machine(d, "no-gpudirect"), 1, [("gpudirect", "GPUDirect RDMA")]),
]


@pytest.mark.parametrize(("plant", "code", "expected"), PLANTS)
def test_exactly_the_planted_fault_is_listed_and_the_exit_code_is_its_severity(
    tmp_path: Path, plant: Callable[[Path], None], code: int, expected: list[tuple[str, str]]
) -> None:
    hardware = write_hardware(tmp_path / "hw", gpus=4, adapters=2)
    plant(hardware.directory)
    exit_code, found = doctor(hardware, tmp_path)
    told = [(finding["check"], finding["where"].partition(" ")[2]) for finding in found["findings"]]
    assert (exit_code, told, found["checks"]) == (code, expected, ["hardware"])
    assert all(finding["what"] and finding["why"] for finding in found["findings"])


def test_all_planted_faults_are_listed_together_the_worst_first(tmp_path: Path) -> None:
    hardware = write_hardware(tmp_path / "hw", gpus=8, adapters=4, link_layer="Ethernet")
    set_gpu(hardware.directory, 1, "lost")
    set_gpu(hardware.directory, 6, "xid")
    set_port(hardware.directory, "mlx5_0", "down")
    set_port(hardware.directory, "mlx5_2", "unaddressed")
    set_machine(hardware.directory, "files")
    code, found = doctor(hardware, tmp_path)
    assert code == 2
    assert sorted((finding["severity"], finding["check"]) for finding in found["findings"]) == [
        ("error", "fabric-port-down"),
        ("error", "gpu-lost"),
        ("error", "gpu-unusable"),
        ("error", "roce-gid"),
        ("warning", "open-files"),
    ]
    assert found["findings"][-1]["check"] == "open-files"


def test_no_fault_hides_another(tmp_path: Path) -> None:
    hardware = write_hardware(tmp_path / "hw", gpus=8, adapters=4)
    for gpu, fault in [(0, "unlinked"), (3, "lost"), (5, "xid"), (6, "ecc"), (7, "reset")]:
        set_gpu(hardware.directory, gpu, fault)
    for adapter, fault in [("mlx5_1", "down"), ("mlx5_2", "init"), ("mlx5_3", "slow")]:
        set_port(hardware.directory, adapter, fault)
    set_machine(hardware.directory, "memlock")
    _, found = doctor(hardware, tmp_path)
    told = sorted((finding["check"], finding["where"].partition(" ")[2]) for finding in found["findings"])
    assert told == [
        ("fabric-no-subnet-manager", "infiniband mlx5_2"),
        ("fabric-port-down", "infiniband mlx5_1"),
        ("fabric-slow", "infiniband mlx5_3"),
        ("gpu-lost", "0000:4B:00.0"),
        *(("gpu-unusable", f"GPU {gpu}") for gpu in (0, 5, 6, 7)),
        ("memlock", "limits"),
    ]


def test_with_a_configuration_only_its_discovery_is_replaced(tmp_path: Path) -> None:
    hardware = write_hardware(tmp_path / "hw", gpus=2, adapters=2)
    set_port(hardware.directory, "mlx5_1", "down")
    (tmp_path / "agent.yaml").write_text(
        "node_id: n7\nserver: https://127.0.0.1:9\nfabrics: [{name: ib-b, hcas: [mlx5_1]}]\n"
    )
    code, found = doctor(hardware, tmp_path)
    assert code == 2
    assert "certificate" in found["checks"]
    wheres = [finding["where"] for finding in found["findings"] if finding["check"].startswith(("gpu", "fabric"))]
    assert wheres == ["n7 ib-b mlx5_1"]


def test_a_saved_tree_says_nothing_of_the_machine_that_reads_it(tmp_path: Path) -> None:
    hardware = write_hardware(tmp_path / "hw", gpus=2, adapters=1)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "ib").symlink_to(hardware.ib_root)
    code, found = doctor(
        SimulatedHardware(
            directory=tmp_path,
            nvidia_smi=hardware.nvidia_smi,
            ib_root=tmp_path / "saved" / "ib",
            gpu_uuids=[],
            adapters=[],
        ),
        tmp_path,
    )
    assert (code, found["findings"]) == (0, [])


def test_a_program_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    hardware = write_hardware(tmp_path / "hw", gpus=1, adapters=0)
    code, found = doctor(hardware, tmp_path, "--nvidia-smi", tmp_path / "nothing")
    assert (code, [finding["check"] for finding in found["findings"]]) == (2, ["gpu-driver"])
