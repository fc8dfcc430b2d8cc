"""A port that is part of a bond says which, by the files that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.hardware.bonds import read_bond
from llmgw.hardware.ports import parse_pkey, read_ports
from llmgw.messages.agent import Gid
from llmgw.sim.hardware import write_hardware


def make_interface(
    net: Path, name: str, *, bond: str | None = None, is_bond: bool = False, port: int = 0
) -> None:
    (net / name).mkdir(parents=True)
    (net / name / "dev_port").write_text(f"{port}\n")
    if is_bond:
        (net / name / "bonding").mkdir()
    if bond is not None:
        (net / name / "master").symlink_to(f"../{bond}")


def gid(netdev: str | None) -> list[Gid]:
    return [Gid(index=0, gid="fe80:0000:0000:0000:0000:0000:0000:0001", netdev=netdev)]


def test_the_interface_of_a_gid_leads_to_its_bond(tmp_path: Path) -> None:
    root, net = tmp_path / "infiniband", tmp_path / "net"
    make_interface(net, "bond0", is_bond=True)
    make_interface(net, "ens1", bond="bond0")
    make_interface(net, "br0")
    make_interface(net, "ens2", bond="br0")
    assert read_bond(root, "mlx5_bond_0", 1, gid("bond0")) == "bond0"
    assert read_bond(root, "mlx5_3", 1, gid("ens1")) == "bond0"
    assert read_bond(root, "mlx5_4", 1, gid("ens2")) is None, "a bridge is no bond"
    assert read_bond(root, "mlx5_5", 1, gid("../../etc")) is None


def test_without_gids_the_adapters_own_interfaces_tell_and_each_port_has_its_own(tmp_path: Path) -> None:
    device = tmp_path / "infiniband" / "mlx4_0" / "device" / "net"
    make_interface(device, "bond1", is_bond=True)
    make_interface(device, "ens3", port=0)
    make_interface(device, "ens3d1", bond="bond1", port=1)
    (device / "bond1" / "dev_port").write_text("9\n")
    assert read_bond(tmp_path / "infiniband", "mlx4_0", 1, []) is None
    assert read_bond(tmp_path / "infiniband", "mlx4_0", 2, []) == "bond1"


def test_an_adapter_that_is_called_a_bond_is_one_where_no_interface_is_seen(tmp_path: Path) -> None:
    assert read_bond(tmp_path, "mlx5_bond_0", 1, gid("bond7")) == "mlx5_bond_0"
    assert read_bond(tmp_path, "mlx5_0", 1, gid("ens1")) is None


def test_partition_keys_are_read_in_the_tables_order_without_unused_entries(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", adapters=1)
    table = node.ib_root / "mlx5_0" / "ports" / "1" / "pkeys"
    assert read_ports(node.ib_root)[0].pkeys == [0xFFFF]
    for index, text in enumerate(["0x7fff", "0x0000", "0x8001", "0x8000", "nothing"]):
        (table / str(index)).write_text(text + "\n")
    assert read_ports(node.ib_root)[0].pkeys == [0x7FFF, 0x8001]
    (table / "100").write_text("0x8002\n")
    for index in range(5, 40):
        (table / str(index)).write_text("0x0000\n")
    assert read_ports(node.ib_root)[0].pkeys == [0x7FFF, 0x8001], "not 128 questions to the firmware"
    assert write_hardware(tmp_path / "roce", adapters=1, link_layer="Ethernet").ib_root.exists()
    assert read_ports(tmp_path / "roce" / "ib")[0].pkeys == [0xFFFF]
    for entry in table.iterdir():
        entry.unlink()
    assert read_ports(node.ib_root)[0].pkeys is None


@pytest.mark.parametrize("text", [None, "", "0x0", "0x8000", "65535", "0xfffff", "0xzz"])
def test_what_is_no_key_is_none(text: str | None) -> None:
    assert parse_pkey(text) is None
