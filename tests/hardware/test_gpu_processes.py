"""Who holds GPU memory, as nvidia-smi lists it, whole and odd."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from llmgw.hardware.gpu_processes import GpuProcess, parse_gpu_processes
from llmgw.hardware.gpus import read_gpus
from llmgw.sim.hardware import hold_gpu_memory, write_hardware
from tests.hardware.nodes import discovery_of, write_program
from tests.hardware.samples import SAMPLES, WITHOUT_SAMPLES

ONE = "GPU-00000000-0000-0000-0000-000000000001"
TWO = "GPU-00000000-0000-0000-0000-000000000002"
THREE = "GPU-00000000-0000-0000-0000-000000000003"
HEADING = "pid, gpu_uuid, used_gpu_memory [MiB]\n"


def test_rows_are_read_by_the_heading_with_units_or_without() -> None:
    found = parse_gpu_processes(f"{HEADING}\n11, {ONE}, 20480 MiB\n12, {TWO}, 300\n")
    assert found.processes == [GpuProcess(ONE, 11, 20480), GpuProcess(TWO, 12, 300)]
    swapped = parse_gpu_processes(f"gpu_uuid, used_memory [MiB], pid\r\n{ONE}, 7 MiB, 11\r\n")
    assert swapped.processes == [GpuProcess(ONE, 11, 7)]
    assert found.of(THREE).complete
    assert found.of(THREE).processes == ()


def test_a_heading_alone_says_that_nobody_is_there() -> None:
    assert parse_gpu_processes(HEADING).of(ONE).complete
    assert parse_gpu_processes("No running processes found\n").of(ONE).complete


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        'Field "gpu_uuid" is not a valid field to query.\n',
        f"{HEADING}11, [Unknown Error], 5 MiB\n",
        f"{HEADING}11, {ONE}\n",
        f"{HEADING}Unable to determine the device handle for GPU 0000:01:00.0: Unknown Error\n",
    ],
)
def test_what_is_no_whole_list_is_unknown_and_never_empty(text: str) -> None:
    assert not parse_gpu_processes(text).of(ONE).complete


@pytest.mark.parametrize("word", ["[N/A]", "[Not Supported]", "[Insufficient Permissions]", "N/A", "-5 MiB", ""])
def test_a_size_in_words_is_unknown(word: str) -> None:
    found = parse_gpu_processes(f"{HEADING}11, {ONE}, {word}\n")
    assert found.processes == [GpuProcess(ONE, 11, None)]
    assert found.of(ONE).complete


def test_a_process_on_two_mig_devices_of_a_gpu_holds_the_sum() -> None:
    found = parse_gpu_processes(f"{HEADING}11, {ONE}, 100 MiB\n11, {ONE}, 200 MiB\n11, {TWO}, [N/A]\n")
    assert found.processes == [GpuProcess(ONE, 11, 300), GpuProcess(TWO, 11, None)]


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=WITHOUT_SAMPLES)
def test_rows_of_real_machines_are_read() -> None:
    text = (SAMPLES / "nvidia-smi/compute_apps_not_supported_row.txt").read_text()
    found = parse_gpu_processes(text, asked=("gpu_uuid", "pid", "used_gpu_memory"))
    assert [(one.pid, one.used_mib) for one in found.of(TWO).processes] == [(192453, 3000), (194826, 6000)]
    assert (found.of(ONE).complete, found.of(TWO).complete) == (True, True)
    # The row whose pid is `[Not Supported]` says that somebody else is there.
    assert [one.pid for one in found.of(THREE).processes] == [38310]
    assert not found.of(THREE).complete


def test_a_simulated_node_names_who_holds_its_memory(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=2, node="node01")
    hold_gpu_memory(node.directory, [node.gpu_uuids[1]], 20480)
    reading = read_gpus(discovery_of(node))
    assert reading.processes.of(node.gpu_uuids[0]).processes == ()
    (holder,) = reading.processes.of(node.gpu_uuids[1]).processes
    assert (holder.pid, holder.used_mib) == (os.getpid(), 20480)
    assert reading.processes.of(node.gpu_uuids[0]).complete


def test_idle_gpus_cost_no_second_question(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=2)
    calls = tmp_path / "calls"
    program = write_program(tmp_path / "smi", f'echo "$*" >>{calls}\nexec {node.nvidia_smi} "$@"')
    discovery = discovery_of(node).model_copy(update={"nvidia_smi": str(program)})
    read_gpus(discovery)
    assert len(calls.read_text().splitlines()) == 1
    hold_gpu_memory(node.directory, node.gpu_uuids, 1000)
    read_gpus(discovery)
    assert len(calls.read_text().splitlines()) == 3


def test_a_list_that_cannot_be_had_is_unknown_and_costs_no_gpu(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=1)
    hold_gpu_memory(node.directory, node.gpu_uuids, 1000)
    program = write_program(
        tmp_path / "smi",
        f'case $1 in --query-compute-apps*) echo "Insufficient permissions"; exit 4;; esac\n'
        f'exec {node.nvidia_smi} "$@"',
    )
    reading = read_gpus(discovery_of(node).model_copy(update={"nvidia_smi": str(program)}))
    assert [gpu.usable for gpu in reading.gpus] == [True]
    assert not reading.processes.of(node.gpu_uuids[0]).complete


def test_both_questions_together_keep_within_the_time(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=1)
    hold_gpu_memory(node.directory, node.gpu_uuids, 1000)
    program = write_program(
        tmp_path / "smi",
        f'case $1 in --query-compute-apps*) exec sleep 600;; esac\nexec {node.nvidia_smi} "$@"',
    )
    discovery = discovery_of(node).model_copy(update={"nvidia_smi": str(program)})
    began = time.monotonic()
    reading = read_gpus(discovery, timeout_s=1.0)
    assert time.monotonic() - began < 5
    assert [gpu.usable for gpu in reading.gpus] == [True]
    assert not reading.processes.of(node.gpu_uuids[0]).complete
