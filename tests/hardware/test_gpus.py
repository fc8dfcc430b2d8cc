"""The GPUs of a node, asked through NVML or through an nvidia-smi program."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from llmgw.config.agent import Discovery
from llmgw.hardware.gpus import read_gpus
from llmgw.hardware.nvidia_smi import GpuTable
from llmgw.hardware.nvml import NvmlUnavailable
from llmgw.messages.agent import Gpu
from llmgw.sim.hardware import set_gpu, write_hardware
from tests.hardware.nodes import discovery_of, write_program


def no_nvml() -> GpuTable:
    raise NvmlUnavailable("NVML cannot be used: Shared Library Not Found", driver_present=False)


def forbidden_nvml() -> GpuTable:
    raise AssertionError("NVML must not be asked")


def answering_nvml() -> GpuTable:
    return GpuTable(gpus=[Gpu(index=0, uuid="GPU-from-nvml", name="NVIDIA H200")])


def test_a_simulated_node_is_read_as_a_node(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=8, node="node01")
    reading = read_gpus(discovery_of(node), nvml=forbidden_nvml)
    assert (reading.source, reading.findings) == ("nvidia-smi", [])
    assert [gpu.index for gpu in reading.gpus] == list(range(8))
    assert [gpu.uuid for gpu in reading.gpus] == node.gpu_uuids
    assert {(gpu.name, gpu.memory_total_mib, gpu.memory_used_mib) for gpu in reading.gpus} == {
        ("NVIDIA H100 80GB HBM3", 81559, 0)
    }
    assert {(gpu.driver_version, gpu.mig, gpu.usable) for gpu in reading.gpus} == {("590.48.01", False, True)}
    assert len({gpu.pci_bus_id for gpu in reading.gpus}) == 8


def test_nvml_is_asked_first_where_nvidia_smi_is_a_bare_name() -> None:
    reading = read_gpus(Discovery(nvidia_smi="nvidia-smi-of-nobody"), nvml=answering_nvml)
    assert reading.source == "nvml"
    assert [gpu.uuid for gpu in reading.gpus] == ["GPU-from-nvml"]


def test_nvidia_smi_is_asked_where_nvml_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = write_hardware(tmp_path / "hw", gpus=2)
    monkeypatch.setenv("PATH", str(node.directory), prepend=":")
    reading = read_gpus(Discovery(), nvml=no_nvml)
    assert reading.source == "nvidia-smi"
    assert len(reading.gpus) == 2


def test_nvml_is_not_asked_when_it_is_not_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = write_hardware(tmp_path / "hw", gpus=1)
    monkeypatch.setenv("PATH", str(node.directory), prepend=":")
    assert len(read_gpus(Discovery(prefer_nvml=False), nvml=forbidden_nvml).gpus) == 1


def test_an_nvml_that_hangs_costs_one_reading_and_one_thread(tmp_path: Path) -> None:
    release = threading.Event()
    calls: list[int] = []

    def hanging() -> GpuTable:
        calls.append(1)
        release.wait(30)
        return GpuTable()

    bare = Discovery(nvidia_smi="nvidia-smi-of-nobody")
    try:
        first = read_gpus(bare, nvml=hanging, timeout_s=0.1)
        assert "did not answer within 0.1 s" in first.findings[0].what
        second = read_gpus(bare, nvml=hanging, timeout_s=0.1)
        assert "still hangs" in second.findings[0].what
        assert calls == [1]
    finally:
        release.set()
        for thread in threading.enumerate():
            if thread.name == "nvml":
                thread.join(5)


def test_bindings_that_fail_in_their_own_way_are_a_finding() -> None:
    def broken() -> GpuTable:
        raise AttributeError("nvmlSomethingNew")

    reading = read_gpus(Discovery(nvidia_smi="nvidia-smi-of-nobody"), nvml=broken)
    assert "nvmlSomethingNew" in reading.findings[0].what


def test_without_any_driver_there_are_no_gpus_and_one_finding_with_a_remedy() -> None:
    reading = read_gpus(Discovery(nvidia_smi="nvidia-smi-of-nobody"), nvml=no_nvml)
    assert (reading.gpus, reading.source) == ([], None)
    (finding,) = reading.findings
    assert "no NVIDIA driver was found" in finding.what
    assert "discovery.nvidia_smi" in finding.remedy


def test_a_node_without_gpus_is_said_once(tmp_path: Path) -> None:
    reading = read_gpus(discovery_of(write_hardware(tmp_path / "hw", gpus=0)))
    assert reading.gpus == []
    assert [finding.check for finding in reading.findings] == ["gpu-none"]


@pytest.mark.parametrize("state", ["reset", "ecc"])
def test_a_broken_gpu_stays_listed_and_is_not_usable(tmp_path: Path, state: str) -> None:
    node = write_hardware(tmp_path / "hw", gpus=4)
    set_gpu(node.directory, 2, state)  # type: ignore[arg-type]
    reading = read_gpus(discovery_of(node))
    assert [gpu.usable for gpu in reading.gpus] == [True, True, False, True]
    (finding,) = reading.findings
    assert (finding.check, finding.where, finding.severity) == ("gpu-unusable", "GPU 2", "error")
    set_gpu(node.directory, 2, "ok")
    assert read_gpus(discovery_of(node)).findings == []


def test_a_lost_gpu_is_named_by_its_bus_and_costs_no_other(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=4)
    set_gpu(node.directory, 1, "lost")
    reading = read_gpus(discovery_of(node))
    assert [gpu.index for gpu in reading.gpus] == [0, 2, 3]
    (finding,) = reading.findings
    assert finding.what == "0000:2B:00.0 is lost: Unknown Error"


def test_skipped_gpus_are_not_usable_and_no_finding(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=4)
    reading = read_gpus(discovery_of(node, skip_gpus=[0, node.gpu_uuids[2].upper()]))
    assert [gpu.usable for gpu in reading.gpus] == [False, True, False, True]
    assert reading.gpus[0].reason == "skipped by discovery.skip_gpus"
    assert [gpu.unusable_kind for gpu in reading.gpus] == ["skipped", None, "skipped", None]
    assert reading.findings == []


def test_a_skipped_gpu_that_does_not_exist_is_a_finding(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=2)
    (finding,) = read_gpus(discovery_of(node, skip_gpus=[7])).findings
    assert "names 7, which is no GPU" in finding.what


def test_an_older_driver_is_asked_again_without_the_fields_it_does_not_know(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=2)
    old = write_program(
        tmp_path / "old-smi",
        'for field in gpu_recovery_action remapped_rows.failure; do case $1 in *"$field"*)\n'
        'printf \'Field "%s" is not a valid field to query.\\n\\n\' "$field"; exit 2;; esac; done\n'
        f'exec {node.nvidia_smi} "$@"',
    )
    reading = read_gpus(Discovery(nvidia_smi=str(old)))
    assert [gpu.usable for gpu in reading.gpus] == [True, True]
    assert reading.findings == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("exit 9", "not loaded"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "version mismatch"),
        ("echo 'NVIDIA-SMI has failed because it cannot talk.' | tee /dev/stderr; exit 9", "has failed"),
        ("echo 'No devices were found' >&2; exit 6", "finds no GPU"),
        ("exit 77", "exit code 77"),
        ("kill -9 $$", "signal 9"),
        ("exit 0", "lists no GPU"),
        ("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done", "more than"),
        ("sleep 60", "did not answer within"),
    ],
)
def test_a_failing_nvidia_smi_is_no_gpus_and_a_sentence(tmp_path: Path, body: str, words: str) -> None:
    program = write_program(tmp_path / "nvidia-smi", body)
    reading = read_gpus(Discovery(nvidia_smi=str(program)), timeout_s=3.0 if "sleep" not in body else 0.3)
    assert reading.gpus == []
    assert any(words in finding.what for finding in reading.findings)
    assert all(finding.remedy or finding.check == "gpu-unread" for finding in reading.findings)


def test_a_path_that_does_not_exist_is_a_sentence(tmp_path: Path) -> None:
    (finding,) = read_gpus(Discovery(nvidia_smi=str(tmp_path / "nvidia-smi"))).findings
    assert "does not exist" in finding.what


def test_an_error_code_does_not_lose_the_gpus_that_were_listed(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=2)
    program = write_program(tmp_path / "smi", f'{node.nvidia_smi} "$@"; exit 14')
    reading = read_gpus(Discovery(nvidia_smi=str(program)))
    assert len(reading.gpus) == 2
    (finding,) = reading.findings
    assert (finding.severity, "infoROM" in finding.what) == ("warning", True)


def test_the_numa_node_is_that_of_the_nvidia_device_at_the_bus_address(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=2)
    pci = tmp_path / "pci"
    for address, vendor in (("0000:1b:00.0", "0x10de"), ("0000:2b:00.0", "0x8086")):
        (pci / address).mkdir(parents=True)
        (pci / address / "vendor").write_text(vendor + "\n")
        (pci / address / "numa_node").write_text("1\n")
    assert [gpu.numa_node for gpu in read_gpus(discovery_of(node), pci_root=pci).gpus] == [1, None]
