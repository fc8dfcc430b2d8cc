"""Which GID a RoCE port should use, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.config.agent import FabricDeclaration
from llmgw.hardware.gids import choose_gid, gid_findings, read_gids
from llmgw.hardware.ports import read_ports
from llmgw.messages.agent import Gid, Port
from llmgw.sim.hardware import write_hardware

ZERO = "0000:0000:0000:0000"
LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe80:20fb"
ROUTED = "fd00:0000:0000:0001:0ac0:ebff:fe80:20fb"


def ipv4(address: str) -> str:
    return f"{ZERO}:0000:ffff:{address}"


def table(*entries: tuple[str, str]) -> list[Gid]:
    return [Gid(index=index, gid=gid, type=kind, netdev="ens1") for index, (gid, kind) in enumerate(entries)]


@pytest.mark.parametrize(
    ("entries", "index"),
    [
        (
            [
                (LOCAL, "IB/RoCE v1"),
                (LOCAL, "RoCE v2"),
                (ipv4("0a00:0001"), "IB/RoCE v1"),
                (ipv4("0a00:0001"), "RoCE v2"),
            ],
            3,
        ),
        ([(LOCAL, "RoCE v2"), (ROUTED, "RoCE v2")], 1),
        ([(ROUTED, "RoCE v2"), (ipv4("0a00:0001"), "RoCE v2")], 1),
        ([(ipv4("0a00:0001"), "RoCE v2"), (ipv4("0a00:0002"), "RoCE v2")], 0),
        ([(ipv4("a9fe:0102"), "RoCE v2"), (LOCAL, "RoCE v2")], None),
        ([(ipv4("0a00:0001"), "IB/RoCE v1")], None),
        ([], None),
    ],
)
def test_v2_with_ipv4_then_routed_ipv6_and_never_link_local(
    entries: list[tuple[str, str]], index: int | None
) -> None:
    chosen = choose_gid(table(*entries))
    assert (None if chosen is None else chosen.index) == index


def test_a_table_is_read_with_its_holes(tmp_path: Path) -> None:
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (tmp_path / folder).mkdir(parents=True)
    for index in (0, 1, 2, 10):
        (tmp_path / "gids" / str(index)).write_text(f"{ZERO}:0000:0000:0000:0000\n")
    (tmp_path / "gids" / "x").write_text(LOCAL)
    (tmp_path / "gids" / "3").write_text("no gid\n")
    (tmp_path / "gids" / "10").write_text(ipv4("0a00:0001").upper() + "\n")
    (tmp_path / "gid_attrs/types/10").write_text("RoCE v2\n")
    (tmp_path / "gid_attrs/ndevs/10").write_text("net1\n")
    assert read_gids(tmp_path) == [Gid(index=10, gid=ipv4("0a00:0001"), type="RoCE v2", netdev="net1")]


def test_a_simulated_roce_port_has_gids_and_an_infiniband_one_needs_none(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "roce", adapters=2, link_layer="Ethernet")
    ports = read_ports(node.ib_root)
    chosen = choose_gid(ports[1].gids)
    assert chosen is not None
    assert (chosen.index, chosen.type, chosen.netdev) == (3, "RoCE v2", "ens1np0")
    assert gid_findings([FabricDeclaration(name="r", hcas=["mlx5_0", "mlx5_1"])], ports) == []
    infiniband = read_ports(write_hardware(tmp_path / "ib", adapters=1).ib_root)
    assert [gid.index for gid in infiniband[0].gids] == [0]
    assert gid_findings([FabricDeclaration(name="a", hcas=["mlx5_0"])], infiniband) == []


def test_ports_without_a_gid_and_ports_that_differ_are_found() -> None:
    def port(adapter: str, *entries: tuple[str, str]) -> Port:
        return Port(adapter=adapter, port=1, link_layer="Ethernet", state="ACTIVE", gids=table(*entries))

    fabric = FabricDeclaration(name="r", hcas=["mlx5_0", "mlx5_1:1"])
    good = port("mlx5_0", (LOCAL, "RoCE v2"), (ipv4("0a00:0001"), "RoCE v2"))
    (none,) = gid_findings([fabric], [good, port("mlx5_1", (LOCAL, "RoCE v2"))])
    assert (none.check, none.severity, none.where) == ("roce-gid", "error", "r mlx5_1")
    assert "ip addr add ADDRESS/BITS dev ens1" in none.remedy
    (differs,) = gid_findings([fabric], [good, port("mlx5_1", (ipv4("0a00:0002"), "RoCE v2"))])
    assert (differs.check, differs.severity) == ("roce-gid-differs", "warning")
    assert "1 on mlx5_0:1, 0 on mlx5_1:1" in differs.what
