"""Who is near to whom in the PCI tree of sysfs, below a root that is a parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.hardware.pci import nearest_adapters, numa_node_of, pci_address
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
