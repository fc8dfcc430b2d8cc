"""Who is near to whom in the PCI tree of sysfs, below a root that is a parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.hardware.pci import link_gbps, nearest_adapters, numa_node_of, pci_address
from llmgw.messages.agent import Port

GPU = "00000000:1B:00.0"


def device(root: Path, way: str, vendor: str = "0x15b3", numa: int = -1) -> None:
    """A device at the end of `way`, listed as the kernel lists it."""
    folder = root / "devices" / way
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(vendor)
    (folder / "numa_node").write_text(str(numa))
    (root / "bus").mkdir(exist_ok=True)
    (root / "bus" / folder.name).symlink_to(folder)


def ports(**addresses: str | None) -> list[Port]:
    return [Port(adapter=adapter, port=1, pci_address=address) for adapter, address in addresses.items()]


def test_below_one_switch_before_below_one_root_before_on_one_numa_node(tmp_path: Path) -> None:
    device(tmp_path, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:1b:00.0", "0x10de", 0)
    device(tmp_path, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:18:00.0", numa=0)
    device(tmp_path, "pci0000:15/0000:15:01.0/0000:19:00.0", numa=0)
    device(tmp_path, "pci0000:15/0000:15:02.0/0000:20:00.0", numa=0)
    device(tmp_path, "pci0000:30/0000:30:01.0/0000:31:00.0", numa=0)
    device(tmp_path, "pci0000:80/0000:80:01.0/0000:81:00.0", numa=1)
    root = tmp_path / "bus"
    switch, bridge, host, node = "0000:18:00.0", "0000:19:00.0", "0000:20:00.0", "0000:31:00.0"
    far = "0000:81:00.0"
    for near, other in ((bridge, host), (host, node), (node, far)):
        assert nearest_adapters(GPU, ports(mlx5_1=near, mlx5_0=other), root) == ["mlx5_1"]
    assert nearest_adapters(GPU, ports(a=switch, b=host), root) == ["a"]
    assert nearest_adapters(GPU, ports(a=node, b=far), root) == ["a"]
    assert nearest_adapters(GPU, ports(a=far), root) == []
    assert numa_node_of(GPU, root) == 0


def test_adapters_at_the_same_distance_tie(tmp_path: Path) -> None:
    device(tmp_path, "pci0000:15/0000:15:01.0/0000:1b:00.0", "0x10de")
    device(tmp_path, "pci0000:15/0000:15:02.0/0000:18:00.0")
    device(tmp_path, "pci0000:15/0000:15:03.0/0000:19:00.0")
    both = ports(mlx5_0="0000:18:00.0", mlx5_1="0000:19:00.0")
    assert nearest_adapters(GPU, both, tmp_path / "bus") == ["mlx5_0", "mlx5_1"]


def test_what_the_tree_does_not_have_is_unknown(tmp_path: Path) -> None:
    device(tmp_path, "pci0000:15/0000:1b:00.0", "0x8086")
    there = ports(mlx5_0="0000:18:00.0")
    assert nearest_adapters(GPU, there, tmp_path / "bus") is None
    assert nearest_adapters(GPU, there, None) is None
    assert nearest_adapters(None, there, tmp_path / "bus") is None
    assert numa_node_of(GPU, tmp_path / "bus") is None


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [(GPU, "0000:1b:00.0"), ("00000009:01:00.0", "0009:01:00.0"), ("1B:00.0", "0000:1b:00.0"), ("x", None)],
)
def test_a_bus_id_is_the_kernels_address(bus_id: str, address: str | None) -> None:
    assert pci_address(bus_id) == address


@pytest.mark.parametrize(
    ("speed", "width", "gbps"),
    [
        ("64.0 GT/s PCIe", "16", 968.0),
        ("32.0 GT/s PCIe", "16", 504.1),
        ("32.0 GT/s PCIe", "4", 126.0),
        ("16.0 GT/s PCIe", "16", 252.1),
        ("8.0 GT/s PCIe", "8", 63.0),
        ("5.0 GT/s PCIe", "8", 32.0),
        ("2.5 GT/s", "1", 2.0),
        ("Unknown", "16", None),
        ("Unknown speed", "0", None),
        ("8.0 GT/s PCIe", "0", None),
        ("8.0 GT/s PCIe", "63", None),
        ("8.0 GT/s PCIe", "255", None),
        ("8.0 GT/s PCIe", "", None),
    ],
)
def test_a_pcie_link_carries_its_rate_less_its_encoding(
    tmp_path: Path, speed: str, width: str, gbps: float | None
) -> None:
    (tmp_path / "current_link_speed").write_text(speed + "\n")
    (tmp_path / "current_link_width").write_text(width + "\n")
    assert link_gbps(tmp_path) == gbps
    assert link_gbps(tmp_path / "none") is None
    # A virtual function has the link of the adapter that it is a part of.
    function = tmp_path / "function"
    function.mkdir()
    (function / "physfn").symlink_to(tmp_path)
    (function / "current_link_speed").write_text("Unknown\n")
    assert link_gbps(function) == gbps
