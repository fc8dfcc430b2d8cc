"""The topology of real machines, read as their index says, where it lies beside the repository."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from llmgw.hardware.topo import parse_topology
from tests.hardware.samples import SAMPLES, WITHOUT_SAMPLES, sample_files

pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason=WITHOUT_SAMPLES)

ALL_8 = {gpu: [other for other in range(8) if other != gpu] for gpu in range(8)}
ALL_4 = {gpu: [other for other in range(4) if other != gpu] for gpu in range(4)}


def one_each(*names: str) -> dict[int, list[str]]:
    return {gpu: [name] for gpu, name in enumerate(names)}


def mlx5(*numbers: int) -> dict[int, list[str]]:
    return one_each(*(f"mlx5_{number}" for number in numbers))


def nic(*numbers: int) -> dict[int, list[str]]:
    return one_each(*(f"NIC{number}" for number in numbers))


# File → (GPUs, NVLink peers, nearest adapters), of the rows that are there.
ANSWERS: dict[str, tuple[int, dict[int, list[int]], dict[int, list[str]]]] = {
    "a100_nv4_four_all_to_all": (4, ALL_4, {0: (four := [f"mlx5_{n}" for n in range(4)]), 1: four, 2: [], 3: []}),
    "a100_nv4_four_gpus_two_nics_four_numa": (4, ALL_4, {0: [], 1: ["mlx5_0"], 2: ["mlx5_1"], 3: []}),
    "a100_pair_nv12_device_columns": (2, {0: [1], 1: [0]}, {0: ["mlx5_6", "mlx5_7"], 1: ["mlx5_6", "mlx5_7"]}),
    "b200_header_nic11_glued_to_cpu_affinity_excerpt": (8, {n: ALL_8[n] for n in range(4)}, nic(0, 3, 4, 5)),
    "five_consumer_gpus_no_nvlink_no_nic": (5, {n: [] for n in range(5)}, {n: [] for n in range(5)}),
    "h100_590_single_gpu_ansi": (1, {0: []}, {0: []}),
    "h100_nv18_12nics_glued_columns": (8, ALL_8, nic(0, 3, 4, 5, 6, 9, 10, 11)),
    "h100_nv18_pix_pxb_no_leading_tab_excerpt": (8, ALL_8, nic(0, 1, 2, 3, 6, 7, 8, 9)),
    "h200_mig_590_single_gpu_ansi": (1, {0: []}, {0: []}),
    "h200_nv18_9nics_mlx5_bond": (8, ALL_8, mlx5(0, 3, 4, 5, 6, 7, 8, 9)),
    "h20_nv18_nic_legend_shifted": (8, ALL_8, mlx5(1, 2, 3, 4, 5, 6, 7, 8)),
    "kvm_one_gpu_one_nic_phb": (1, {0: []}, {0: ["mlx5_0"]}),
    "p4_single_numa_na": (1, {0: []}, {0: []}),
    "roce_nv18_12nics_bonds_unsplit_numa": (8, ALL_8, mlx5(0, 1, 2, 5, 6, 7, 8, 11)),
}


def test_every_file_has_its_answer_here() -> None:
    assert {path.stem for path in sample_files("topo", "*")} == set(ANSWERS)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_a_real_table_is_read_right(name: str) -> None:
    found = parse_topology((SAMPLES / "topo" / f"{name}.txt").read_text())
    gpus, nvlink, nearest = ANSWERS[name]
    assert len(found.gpus) == gpus
    assert {gpu: found.nvlink_peers(gpu) for gpu in found.paths} == nvlink
    assert {gpu: found.nearest_nics(gpu) for gpu in found.nics} == nearest
    whole = len(found.paths) == gpus
    assert found.problems == ([] if whole else [found.problems[0]])
    assert {found.through_switch(gpu) for gpu in found.paths} == ({True} if gpus == 8 else {None})


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_the_command_says_the_same_of_a_pipe(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llmgw", "inspect", "topo", "-", "-o", "json"],
        stdin=(SAMPLES / "topo" / f"{name}.txt").open(),
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    gpus, nvlink, nearest = ANSWERS[name]
    said = json.loads(done.stdout)
    assert list(said) == ["gpus", "nvlink", "nearest_nics", "problems"]
    assert (said["gpus"], said["nvlink"], said["nearest_nics"]) == (
        gpus,
        {str(gpu): peers for gpu, peers in nvlink.items()},
        {str(gpu): nics for gpu, nics in nearest.items()},
    )


def test_pairs_of_gpus_without_nvlink_are_told_by_their_pci_paths() -> None:
    found = parse_topology((SAMPLES / "topo" / "five_consumer_gpus_no_nvlink_no_nic.txt").read_text())
    assert (found.paths[1][2], found.paths[3][4], found.paths[0][1]) == ("PHB", "PHB", "SYS")
