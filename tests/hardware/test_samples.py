"""The readers give the right answers for output of real machines, where it lies beside the repository."""

from __future__ import annotations

import pytest

from llmgw.config.agent import FabricDeclaration
from llmgw.hardware.fabrics import offer_fabrics
from llmgw.hardware.gids import choose_gid
from llmgw.hardware.gpu_processes import parse_gpu_processes
from llmgw.hardware.inspecting import inspect_gpus, inspect_ports
from llmgw.hardware.nvidia_smi import parse_gpus
from llmgw.hardware.ports import read_ports
from llmgw.messages.agent import Gid, Gpu
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

# File → (usable GPUs, unusable GPUs, what the findings say).
ODD: dict[str, tuple[int, int, list[str]]] = {
    "cannot_communicate_exit9.txt": (0, 0, ["couldn't communicate with the NVIDIA driver"]),
    "device_handle_then_no_devices.txt": (0, 0, ["0000:01:00.0 is lost: Unknown Error"]),
    "fallen_off_bus.txt": (0, 0, ["0000:01:00.0 is lost: GPU has fallen off the bus"]),
    "gb10_nvitop208_csv.txt": (1, 0, []),
    "gb10_row_nounits_and_compute_apps.txt": (1, 0, []),
    "gb10_unsloth10703_csv.txt": (1, 0, []),
    "gpu_requires_reset_h100_csv.txt": (0, 1, []),
    "healthy_peer_h100_csv.txt": (1, 0, []),
    "loop_mode_second_sample_unknown_error.txt": (0, 0, ["could not be read: 0, 0, 0", "2 rows say nothing"]),
    "lost_gpu_error_line_between_rows.txt": (1, 0, ["0000:02:00.0 is lost: Unknown Error"]),
    "no_devices_only.txt": (0, 0, ["finds no GPU"]),
    "unknown_error_fan_eight_gtx_noheader.txt": (8, 0, []),
}


# File of a table or list → each GPU's (index, name, used, total, MIG devices, usable).
TABLES: dict[str, list[tuple[object, ...]]] = {
    "err_fan_525_table_gpud.txt": [(0, "NVIDIA GeForce ...", 2021, 23028, 0, True)],
    "err_fan_table_rtx4000ada.txt": [
        (13, "NVIDIA RTX 4000 Ada Gene...", 1, 20475, 0, True),
        (14, "NVIDIA RTX 4000 Ada Gene...", 1, 20475, 0, False),
    ],
    "err_power_v100_table_row.txt": [(0, "unknown", 593, 16160, 0, True)],
    "gh200_four_module_table_excerpt.txt": [
        (0, "NVIDIA GH200 120GB", 5, 97871, 0, True),
        (1, "NVIDIA GH200 120GB", 40, 97871, 0, True),
        (2, "NVIDIA GH200 120GB", 35, 97871, 0, True),
    ],
    "gh200_mig_table_570_excerpt.txt": [(0, "NVIDIA GH200 480GB", 29465, 97871, 1, True)],
    "gh200_table_535.txt": [(0, "NVIDIA GH200 480GB", 1, 97871, 0, True)],
    "h100_mig_590_default_table.txt": [(0, "NVIDIA H100 80GB HBM3", 59, 81559, 4, True)],
    "h100_mig_590_list_L.txt": [(0, "NVIDIA H100 80GB HBM3", None, None, 4, True)],
    "h200_mig_590_default_table.txt": [(0, "NVIDIA H200", 55, 143771, 5, True)],
    "h200_mig_590_list_L.txt": [(0, "NVIDIA H200", None, None, 5, True)],
    "h20_same_total_as_gh200_table_excerpt.txt": [(0, "NVIDIA H20", 4, 97871, 0, True)],
}
PROCESSES = "compute_apps_not_supported_row.txt"


@needs_samples
def test_every_file_has_its_answer_here() -> None:
    csv = {f"{name}.csv.txt" for name in CSV}
    assert {path.name for path in sample_files("nvidia-smi", "*")} == csv | set(ODD) | set(TABLES) | {PROCESSES}


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
@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_real_table_or_list_is_read_right(name: str) -> None:
    read = parse_gpus((SAMPLES / "nvidia-smi" / name).read_text())
    assert read.findings == []
    assert [
        (gpu.index, gpu.name, gpu.memory_used_mib, gpu.memory_total_mib, len(gpu.mig_devices), gpu.usable)
        for gpu in read.gpus
    ] == TABLES[name]
    for gpu in read.gpus:
        assert bool(gpu.mig) == bool(gpu.mig_devices)


@needs_samples
def test_details_of_real_tables() -> None:
    def gpus(name: str) -> list[Gpu]:
        return parse_gpus((SAMPLES / "nvidia-smi" / name).read_text()).gpus

    (h200,) = gpus("h200_mig_590_default_table.txt")
    assert [device.memory_total_mib for device in h200.mig_devices] == [71424, 71424, 33280, 16384, 16384]
    assert (h200.cuda_version, h200.driver_version) == ("13.1", "590.48.01")
    (listed,) = gpus("h200_mig_590_list_L.txt")
    assert [device.profile for device in listed.mig_devices] == [
        *("1c.3g.71gb", "2c.3g.71gb", "2g.35gb", "1g.18gb", "1g.18gb"),
    ]
    assert len({device.uuid for device in listed.mig_devices}) == 5
    assert [device.memory_total_mib for device in gpus("gh200_mig_table_570_excerpt.txt")[0].mig_devices] == [
        47616
    ]
    assert [gpu.pci_bus_id for gpu in gpus("gh200_four_module_table_excerpt.txt")] == [
        *("00000009:01:00.0", "00000019:01:00.0", "00000029:01:00.0"),
    ]
    assert "ERR!" in (gpus("err_fan_table_rtx4000ada.txt")[1].reason or "")


@needs_samples
@pytest.mark.parametrize(
    ("name", "used_mib"),
    [
        ("gb10_nvitop208_csv.txt", None),
        ("gb10_unsloth10703_csv.txt", None),
        ("gb10_row_nounits_and_compute_apps.txt", 96073 + 218),
    ],
)
def test_a_real_unified_memory_is_marked_and_its_size_left_to_the_machine(
    name: str, used_mib: int | None
) -> None:
    (gpu,) = parse_gpus((SAMPLES / "nvidia-smi" / name).read_text()).gpus
    assert (gpu.memory_total_mib, gpu.memory_used_mib) == (None, used_mib)
    assert gpu.unified_memory == ("row_nounits" not in name)


@needs_samples
def test_a_real_list_of_processes_with_one_that_the_driver_does_not_name() -> None:
    text = (SAMPLES / "nvidia-smi" / PROCESSES).read_text()
    listed = parse_gpu_processes(text, ("gpu_uuid", "pid", "used_memory"))
    assert (len(listed.processes), len(listed.unknown)) == (5, 1)
    report = inspect_gpus(text)
    assert report.problems == ["this is a list of processes (5, and of 1 GPUs not all), not of GPUs"]


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
    assert [port.bond for port in ports] == [None] * 8 + ["mlx5_bond_0"]
    assert {port.pkeys for port in ports} == {None}, "the tree was saved without the tables"

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


@needs_samples
def test_real_trees_as_the_command_tells_them() -> None:
    mixed = inspect_ports(SAMPLES / "sysfs" / "h100_mixed_ib_eth")
    assert [port.adapter for port in mixed.ports if port.usable] == [
        f"mlx5_{n}" for n in (0, 1, 4, 5, 6, 7, 8, 9)
    ]
    assert mixed.problems == [
        "mlx5_1 port 1 has counters at their end, which count no further: link_downed 255 or more"
    ]
    three = inspect_ports(SAMPLES / "sysfs" / "procfs_mlx4_mlx5_hfi1")
    assert all(port.usable for port in three.ports)
    assert three.problems == ["mlx5_0 port 1 runs on one lane of four (25 Gb/sec (1X EDR)): reseat its cable"]
    assert inspect_ports(SAMPLES / "sysfs" / "node_exporter_mlx4_nopma_i40iw").problems == []


def gids_of(name: str) -> dict[str, list[Gid]]:
    """A saved `show_gids` as the entries of each adapter's first port."""
    found: dict[str, list[Gid]] = {}
    for line in (SAMPLES / "gids" / name).read_text().splitlines():
        cells = line.split()
        version = next((cell for cell in cells if cell in ("v1", "v2")), None)
        if version is not None:
            kind = "RoCE v2" if version == "v2" else "IB/RoCE v1"
            gid = cells[3].replace("xxxx", "1234")
            found.setdefault(cells[0], []).append(Gid(index=int(cells[2]), gid=gid, type=kind))
    return found


@needs_samples
@pytest.mark.parametrize(
    ("name", "indexes"),
    [
        ("bond_v1_v2.txt", {"mlx5_bond_0": 3}),
        ("mixed_eth_ib_no_ipv4.txt", {"mlx5_0": None, "mlx5_1": None}),
        ("three_ports_index3.txt", {"mlx5_0": 3, "mlx5_1": 3, "mlx5_2": 3}),
        (
            "gb10_four_ports_two_with_ipv4_redacted.txt",
            {"rocep1s0f0": 3, "rocep1s0f1": None, "roceP2p1s0f0": 3, "roceP2p1s0f1": None},
        ),
    ],
)
def test_the_gid_of_a_real_roce_port(name: str, indexes: dict[str, int | None]) -> None:
    chosen = {adapter: choose_gid(gids) for adapter, gids in gids_of(name).items()}
    assert {adapter: None if gid is None else gid.index for adapter, gid in chosen.items()} == indexes
