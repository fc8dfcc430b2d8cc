"""The readers give the right answers for output of real machines, where it lies beside the repository."""

from __future__ import annotations

import pytest

from llmgw.config.agent import FabricDeclaration
from llmgw.hardware.fabrics import offer_fabrics
from llmgw.hardware.nvidia_smi import parse_gpus
from llmgw.hardware.ports import read_ports
from tests.hardware.samples import SAMPLES, WITHOUT_SAMPLES, sample_files

needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason=WITHOUT_SAMPLES)

# File → (name, memory total, memory used, utilization, temperature, MIG, bus id), one GPU each.
CSV: dict[str, tuple[object, ...]] = {
    "h100_590_idle_all_fields": ("NVIDIA H100 80GB HBM3", 81559, 0, 0, 41, False, "00000000:00:09.0"),
    "h100_590_idle_selected": ("NVIDIA H100 80GB HBM3", 81559, 0, 0, 41, False, "00000000:00:09.0"),
    "h100_590_load_selected": ("NVIDIA H100 80GB HBM3", 81559, 19818, 100, 59, False, "00000000:00:09.0"),
    "h100_mig_590_idle_all_fields": ("NVIDIA H100 80GB HBM3", 81559, 59, None, 42, True, "00000000:00:09.0"),
    "h100_mig_590_load_selected": ("NVIDIA H100 80GB HBM3", 81559, 11125, None, 53, True, "00000000:00:09.0"),
    "h200_590_idle_all_fields": ("NVIDIA H200", 143771, 0, 0, 28, False, "00000000:83:00.0"),
    "h200_590_idle_selected": ("NVIDIA H200", 143771, 0, 0, 28, False, "00000000:83:00.0"),
    "h200_590_load_selected": ("NVIDIA H200", 143771, 32362, 100, 52, False, "00000000:83:00.0"),
    "h200_mig_590_idle_all_fields": ("NVIDIA H200", 143771, 55, None, 28, True, "00000000:83:00.0"),
    "h200_mig_590_idle_selected": ("NVIDIA H200", 143771, 55, None, 28, True, "00000000:83:00.0"),
    "h200_mig_590_load_selected": ("NVIDIA H200", 143771, 16959, None, 36, True, "00000000:83:00.0"),
    "l40s_595_idle_all_fields": ("NVIDIA L40S", 46068, 0, 100, 63, None, "00000000:01:00.0"),
    "l40s_595_idle_selected": ("NVIDIA L40S", 46068, 0, 100, 63, None, "00000000:01:00.0"),
    "l40s_595_load_selected": ("NVIDIA L40S", 46068, 1235, 9, 54, None, "00000000:01:00.0"),
    "rtx2080s_linux_610_idle_all_fields": (
        *("NVIDIA GeForce RTX 2080 SUPER", 8192, 211, 0, 33, None, "00000000:0C:00.0"),
    ),
    "rtx2080s_linux_610_idle_selected": (
        *("NVIDIA GeForce RTX 2080 SUPER", 8192, 211, 0, 33, None, "00000000:0C:00.0"),
    ),
    "rtx2080s_linux_610_load_selected": (
        *("NVIDIA GeForce RTX 2080 SUPER", 8192, 815, 8, 38, None, "00000000:0C:00.0"),
    ),
    "rtx2080s_windows_610_idle_all_fields": (
        *("NVIDIA GeForce RTX 2080 SUPER", 8192, 797, 0, 40, None, "00000000:0C:00.0"),
    ),
    "rtx2080s_windows_610_idle_selected": (
        *("NVIDIA GeForce RTX 2080 SUPER", 8192, 797, 0, 40, None, "00000000:0C:00.0"),
    ),
    "rtx2080s_windows_610_load_selected": (
        *("NVIDIA GeForce RTX 2080 SUPER", 8192, 1366, 7, 44, None, "00000000:0C:00.0"),
    ),
}

# File → (usable GPUs, unusable GPUs, what the findings say). The tables for people are no CSV and not here.
ODD: dict[str, tuple[int, int, list[str]]] = {
    "cannot_communicate_exit9.txt": (0, 0, ["couldn't communicate with the NVIDIA driver"]),
    "device_handle_then_no_devices.txt": (0, 0, ["0000:01:00.0 is lost: Unknown Error"]),
    "fallen_off_bus.txt": (0, 0, ["0000:01:00.0 is lost: GPU has fallen off the bus"]),
    "gb10_nvitop208_csv.txt": (1, 0, []),
    "gb10_row_nounits_and_compute_apps.txt": (1, 0, ["compute-apps", "3150", "6330"]),
    "gb10_unsloth10703_csv.txt": (1, 0, []),
    "gpu_requires_reset_h100_csv.txt": (0, 1, []),
    "healthy_peer_h100_csv.txt": (1, 0, []),
    "lost_gpu_error_line_between_rows.txt": (1, 0, ["0000:02:00.0 is lost: Unknown Error"]),
    "no_devices_only.txt": (0, 0, ["finds no GPU"]),
    "unknown_error_fan_eight_gtx_noheader.txt": (8, 0, []),
}


@needs_samples
def test_every_csv_file_has_its_answer_here() -> None:
    assert {path.name.partition(".")[0] for path in sample_files("nvidia-smi", "*.csv.txt")} == set(CSV)


@needs_samples
@pytest.mark.parametrize("name", sorted(CSV))
def test_a_real_gpu_is_read_right(name: str) -> None:
    read = parse_gpus((SAMPLES / "nvidia-smi" / f"{name}.csv.txt").read_text())
    assert read.findings == []
    (gpu,) = read.gpus
    assert (gpu.index, gpu.uuid) == (0, "GPU-00000000-0000-0000-0000-000000000000")
    assert (
        gpu.name,
        gpu.memory_total_mib,
        gpu.memory_used_mib,
        gpu.utilization_percent,
        gpu.temperature_c,
        gpu.mig,
        gpu.pci_bus_id,
    ) == CSV[name]
    assert gpu.usable


@needs_samples
@pytest.mark.parametrize("name", sorted(ODD))
def test_odd_output_of_real_machines_is_read_right(name: str) -> None:
    read = parse_gpus((SAMPLES / "nvidia-smi" / name).read_text())
    usable, unusable, findings = ODD[name]
    assert [sum(gpu.usable for gpu in read.gpus), sum(not gpu.usable for gpu in read.gpus)] == [usable, unusable]
    assert len(read.findings) == len(findings)
    for finding, words in zip(read.findings, findings, strict=True):
        assert words in finding.what


@needs_samples
def test_no_file_of_the_folder_raises() -> None:
    for path in sample_files("nvidia-smi", "*"):
        parse_gpus(path.read_text())


@needs_samples
def test_a_real_node_with_infiniband_and_a_bond() -> None:
    ports = read_ports(SAMPLES / "sysfs" / "h100_mixed_ib_eth")
    infiniband = [port for port in ports if port.link_layer == "InfiniBand"]
    assert [port.adapter for port in infiniband] == [f"mlx5_{number}" for number in (0, 1, 4, 5, 6, 7, 8, 9)]
    assert {(port.state, port.phys_state, port.rate_gbps) for port in infiniband} == {("ACTIVE", "LinkUp", 400.0)}
    assert infiniband[1].counters["link_downed"] == 255
    assert infiniband[0].counters["port_rcv_data"] == 230539874932483
    bond = ports[-1]
    assert (bond.adapter, bond.link_layer, bond.rate_text) == ("mlx5_bond_0", "Ethernet", "200 Gb/sec (2X NDR)")

    declared = [
        FabricDeclaration(name="ib", hcas=[port.adapter for port in infiniband]),
        FabricDeclaration(name="mixed", hcas=["mlx5_0", "mlx5_bond_0"]),
    ]
    (whole, mixed), _ = offer_fabrics(declared, ports)
    assert (whole.usable, len(whole.adapters), whole.rate_gbps) == (True, 8, 400.0)
    assert not mixed.usable
    assert "mlx5_bond_0 port 1 is an Ethernet port among InfiniBand ports" in (mixed.reason or "")


@needs_samples
def test_three_makes_of_adapters_in_one_real_tree() -> None:
    ports = read_ports(SAMPLES / "sysfs" / "procfs_mlx4_mlx5_hfi1")
    assert [(port.adapter, port.port, port.rate_gbps, port.rate_text) for port in ports] == [
        ("hfi1_0", 1, 100.0, "100 Gb/sec (4X EDR)"),
        ("mlx4_0", 1, 40.0, "40 Gb/sec (4X QDR)"),
        ("mlx4_0", 2, 40.0, "40 Gb/sec (4X QDR)"),
        ("mlx5_0", 1, 25.0, "25 Gb/sec (1X EDR)"),
    ]
    assert ports[-1].node_guid == "0x0a7fbc1245efd23b"


@needs_samples
def test_counters_that_an_adapter_does_not_keep_are_unknown() -> None:
    ports = read_ports(SAMPLES / "sysfs" / "node_exporter_mlx4_nopma_i40iw")
    assert [(port.adapter, port.port) for port in ports] == [("i40iw0", 1), ("mlx4_0", 1), ("mlx4_0", 2)]
    assert ports[0].rate_gbps == 10.0
    assert ports[0].counters
    assert set(ports[0].counters.values()) == {None}
