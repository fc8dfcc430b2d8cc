"""Ports are read from a tree like /sys/class/infiniband, in which anything may be missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmgw.hardware.ports import parse_counter, parse_guid, parse_lid, parse_rate_gbps, parse_state, read_ports
from llmgw.hardware.sysfs import FILE_BYTES_MAX, list_names, read_text
from llmgw.sim.hardware import set_port, write_hardware


def make_port(root: Path, adapter: str, port: int = 1, **files: str) -> Path:
    folder = root / adapter / "ports" / str(port)
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_a_simulated_adapter_is_read_whole(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", adapters=2, rate_gbps=400, sm_lid=7, node="node01")
    first, second = read_ports(node.ib_root)
    assert (first.adapter, first.port, first.link_layer) == ("mlx5_0", 1, "InfiniBand")
    assert (first.state, first.phys_state) == ("ACTIVE", "LinkUp")
    assert (first.rate_gbps, first.rate_text) == (400.0, "400 Gb/sec (4X NDR)")
    assert first.sm_lid == 7
    assert 1 <= (first.lid or 0) <= 0xBFFF
    assert first.port_guid == first.node_guid
    assert second.node_guid != first.node_guid
    assert first.counters["link_downed"] == 0
    assert (first.counters["port_xmit_data"] or 0) > 10**12
    assert first.counters["out_of_sequence"] == 0
    assert "lifespan" not in first.counters


def test_a_port_that_goes_down_and_comes_back_is_seen(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", adapters=1)
    set_port(node.directory, "mlx5_0", "down")
    (down,) = read_ports(node.ib_root)
    assert (down.state, down.phys_state, down.rate_gbps, down.lid) == ("DOWN", "Polling", None, None)
    assert down.rate_text == "10 Gb/sec (4X SDR)"
    assert down.counters["link_downed"] == 1
    set_port(node.directory, "mlx5_0", "init")
    (init,) = read_ports(node.ib_root)
    assert (init.state, init.phys_state, init.rate_gbps, init.sm_lid) == ("INIT", "LinkUp", 400.0, 0)
    set_port(node.directory, "mlx5_0", "active")
    (active,) = read_ports(node.ib_root)
    assert (active.state, active.rate_gbps) == ("ACTIVE", 400.0)


def test_a_root_that_does_not_exist_has_no_ports(tmp_path: Path) -> None:
    assert read_ports(tmp_path / "nothing") == []


def test_a_root_that_is_a_file_has_no_ports(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert read_ports(tmp_path / "file") == []


def test_adapters_and_ports_come_in_natural_order(tmp_path: Path) -> None:
    for adapter in ("mlx5_10", "mlx5_2", "mlx5_bond_0", "mlx4_0"):
        make_port(tmp_path, adapter)
    make_port(tmp_path, "mlx4_0", 10)
    make_port(tmp_path, "mlx4_0", 2)
    assert [(port.adapter, port.port) for port in read_ports(tmp_path)] == [
        ("mlx4_0", 1),
        ("mlx4_0", 2),
        ("mlx4_0", 10),
        ("mlx5_2", 1),
        ("mlx5_10", 1),
        ("mlx5_bond_0", 1),
    ]


def test_missing_files_are_unknown(tmp_path: Path) -> None:
    make_port(tmp_path, "mlx5_0")
    (port,) = read_ports(tmp_path)
    assert (port.state, port.phys_state, port.rate_gbps, port.rate_text) == (None, None, None, None)
    assert (port.lid, port.sm_lid, port.node_guid, port.port_guid, port.counters) == (None, None, None, None, {})


def test_an_adapter_without_ports_has_none(tmp_path: Path) -> None:
    (tmp_path / "mlx5_0").mkdir()
    (tmp_path / "README").write_text("no adapter")
    assert read_ports(tmp_path) == []


def test_counters_without_a_number_are_unknown(tmp_path: Path) -> None:
    folder = make_port(tmp_path, "i40iw0")
    for place in ("counters", "hw_counters"):
        (folder / place).mkdir()
    (folder / "counters" / "port_rcv_data").write_text("N/A (no PMA)\n")
    (folder / "counters" / "link_downed").write_text("255")
    (folder / "hw_counters" / "ip4InOctets").write_text("9\n")
    (port,) = read_ports(tmp_path)
    assert port.counters == {"port_rcv_data": None, "link_downed": 255, "ip4InOctets": 9}


def test_adapters_may_be_links_as_in_the_kernels_own_tree(tmp_path: Path) -> None:
    make_port(tmp_path / "devices", "mlx5_0", state="4: ACTIVE\n")
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "mlx5_0").symlink_to("../devices/mlx5_0")
    (tmp_path / "class" / "mlx5_9").symlink_to("../devices/gone")
    (port,) = read_ports(tmp_path / "class")
    assert (port.adapter, port.state) == ("mlx5_0", "ACTIVE")


def test_a_pipe_or_a_huge_file_in_the_tree_neither_blocks_nor_fills_memory(tmp_path: Path) -> None:
    folder = make_port(tmp_path, "mlx5_0", rate="400 Gb/sec " + "x" * 10_000_000)
    os.mkfifo(folder / "state")
    (folder / "phys_state").symlink_to("phys_state")
    (port,) = read_ports(tmp_path)
    assert (port.state, port.phys_state, port.rate_gbps) == (None, None, 400.0)
    assert len(port.rate_text or "") <= 64
    assert len(read_text(folder / "rate") or "") == FILE_BYTES_MAX


def test_a_gid_of_a_roce_port_is_not_its_guid(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", adapters=1, link_layer="Ethernet")
    (port,) = read_ports(node.ib_root)
    assert (port.link_layer, port.port_guid, port.rate_text) == ("Ethernet", None, "400 Gb/sec (4X NDR)")


def test_names_with_numbers_that_are_no_ascii_digits_are_sorted_without_an_error(tmp_path: Path) -> None:
    for name in ("mlx5_²", "mlx5_1", "1mlx", "mlx"):
        (tmp_path / name).mkdir()
    assert list_names(tmp_path) == ["1mlx", "mlx", "mlx5_1", "mlx5_²"]


@pytest.mark.parametrize(
    ("text", "word"),
    [("4: ACTIVE", "ACTIVE"), ("5: LinkUp", "LinkUp"), ("ACTIVE", "ACTIVE"), ("4:", None), (None, None)],
)
def test_states_lose_their_number(text: str | None, word: str | None) -> None:
    assert parse_state(text) == word


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", 400.0),
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("10 Gb/sec (4X)", 10.0),
        ("fast", None),
        (None, None),
    ],
)
def test_rates_are_numbers(text: str | None, rate: float | None) -> None:
    assert parse_rate_gbps(text) == rate


def test_lids_guids_and_counters_that_are_none_are_unknown() -> None:
    assert [parse_lid(text) for text in ("0x14e", "0x0", "0xffff", "-1", "x", None)] == [334, 0, *[None] * 4]
    assert parse_guid("0a7f:bc12:45ef:d23b") == "0x0a7fbc1245efd23b"
    assert [parse_guid(text) for text in ("0000:0000:0000:0000", "0a7f", "", None)] == [None] * 4
    assert [parse_counter(text) for text in ("0", str(2**64 - 1), str(2**64), "-1", "²")] == [
        *(0, 2**64 - 1),
        *[None] * 3,
    ]
