"""Fabrics of the project's own, printed as ibnetdiscover prints them: fat trees and rings, with faults on demand.

`python -m tests.fabric.generate --leaves 8 --degraded 2` prints one.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field

ADAPTER_DEVICE = {"EDR": 0x1017, "HDR": 0x101B, "NDR": 0x1021, "XDR": 0x1023}
SWITCH_DEVICE = {"EDR": 0xCF08, "HDR": 0xD2F0, "NDR": 0xD2F2, "XDR": 0xD2F4}
WHOLE_PORTS = {"EDR": 36, "HDR": 40, "NDR": 64, "XDR": 144}


@dataclass
class Made:
    """One node and its ports: port → (other node, its port, rate)."""

    kind: str
    guid: int
    name: str
    ports: int
    device: int
    cables: dict[int, tuple[Made, int, str]] = field(default_factory=dict, repr=False)

    @property
    def id(self) -> str:
        return f"{'S' if self.kind == 'Switch' else 'H'}-{self.guid:016x}"


@dataclass
class Fabric:
    """What was made, and the text of it."""

    speed: str = "NDR"
    switches: list[Made] = field(default_factory=list)
    adapters: list[Made] = field(default_factory=list)
    sharp: list[Made] = field(default_factory=list)

    def text(self) -> str:
        """As infiniband-diags 44 prints it."""
        first = self.adapters[0] if self.adapters else None
        lines = ["#", "# Topology file: generated on Wed Aug  6 16:11:23 2025", "#"]
        if first is not None:
            lines.append(f"# Initiated from node {first.guid:016x} port {first.guid:016x}")
        lines.append("")
        for node in [*self.switches, *self.sharp, *self.adapters]:
            lines += [*_record(node), ""]
        return "\n".join(lines) + "\n"

    def join(self, a: Made, a_port: int, b: Made, b_port: int, rate: str | None = None) -> None:
        """One cable."""
        rate = rate or f"4x{self.speed}"
        a.cables[a_port] = (b, b_port, rate)
        b.cables[b_port] = (a, a_port, rate)

    def rerate(self, a: Made, a_port: int, rate: str) -> None:
        """The cable in a port trains at another rate, at both ends."""
        b, b_port, _ = a.cables[a_port]
        self.join(a, a_port, b, b_port, rate)

    def switch(self, name: str, split: bool = False) -> Made:
        ports = WHOLE_PORTS[self.speed] * (2 if split else 1) + 1
        number = len(self.switches)
        made = Made(
            *("Switch", 0xB8CEF60300100000 + 0x40 * number, f"MF0;{name}:MQM9700/U1", ports),
            SWITCH_DEVICE[self.speed],
        )
        self.switches.append(made)
        return made

    def adapter(self, name: str) -> Made:
        guid = 0x0C42A10300000000 + 0x10 * (len(self.adapters) + 1)
        made = Made("Ca", guid, name, 1, ADAPTER_DEVICE[self.speed])
        self.adapters.append(made)
        return made

    def add_sharp(self, switch: Made) -> None:
        node = Made("Ca", switch.guid + 8, "Mellanox Technologies Aggregation Node", 1, 0xCF09)
        self.sharp.append(node)
        self.join(switch, switch.ports, node, 1)


def fat_tree(
    *,
    nodes: int = 8,
    rails: int = 4,
    leaves: int = 4,
    spines: int = 2,
    trunk: int = 2,
    cores: int = 0,
    pods: int = 1,
    degraded: int = 0,
    split: bool = False,
    sharp: bool = False,
    swap: int | None = None,
    speed: str = "NDR",
) -> Fabric:
    """Two tiers, or three with `cores`: every node's Nth adapter on the Nth leaf of its block.

    `leaves` is a multiple of `rails`; nodes are spread over the blocks. `degraded` trunk cables train a speed
    lower. `split`: leaves run with split ports and adapters at half width. `swap`: on that node the first two
    adapters are cabled to each other's leaf. Spines are joined to all leaves of their pod, cores to all spines.
    """
    made = Fabric(speed)
    tree = [made.switch(f"leaf-{at + 1}", split) for at in range(leaves)]
    tops = [made.switch(f"spine-{at + 1}") for at in range(spines)]
    roots = [made.switch(f"core-{at + 1}") for at in range(cores)]
    blocks = max(1, leaves // rails)
    rate = f"{2 if split else 4}x{speed}"
    next_port = dict.fromkeys(range(leaves), 1)
    for node in range(nodes):
        block = node * blocks // nodes
        for rail in range(rails):
            place = {0: 1, 1: 0}.get(rail, rail) if node == swap else rail
            leaf = block * rails + place
            made.join(tree[leaf], next_port[leaf], made.adapter(f"node{node + 1:04} mlx5_{rail}"), 1, rate)
            next_port[leaf] += 1
    for at, leaf in enumerate(tree):
        for up, top in enumerate(tops):
            if at * pods // leaves != up * pods // spines:
                continue
            for cable in range(trunk):
                made.join(leaf, next_port[at] + up * trunk + cable, top, at * trunk + cable + 1)
    for at, top in enumerate(tops):
        for up, root in enumerate(roots):
            for cable in range(trunk):
                made.join(top, leaves * trunk + up * trunk + cable + 1, root, at * trunk + cable + 1)
    lower = {"EDR": "FDR", "HDR": "EDR", "NDR": "HDR", "XDR": "NDR"}[speed]
    for at in range(degraded):
        made.rerate(tops[at % spines], 1 + at // spines, f"4x{lower}")
    if sharp:
        for switch in made.switches:
            made.add_sharp(switch)
    return made


def ring(*, switches: int = 4, adapters: int = 3, bare: int = 0, trunk: int = 2, speed: str = "EDR") -> Fabric:
    """Switches in a circle, each with adapters but the first `bare` of them."""
    made = Fabric(speed)
    circle = [made.switch(f"ring-{at + 1}") for at in range(switches)]
    for at, switch in enumerate(circle):
        for cable in range(trunk):
            made.join(switch, 1 + cable, circle[(at + 1) % switches], 11 + cable)
        for host in range(adapters if at >= bare else 0):
            made.join(switch, 21 + host, made.adapter(f"node{at}{host} HCA-1"), 1)
    return made


def _record(node: Made) -> list[str]:
    """One record: header, then the ports that have a cable."""
    switch = node.kind == "Switch"
    guid = f"{node.guid:x}"
    lines = [
        "vendid=0x2c9",
        f"devid=0x{node.device:x}",
        f"sysimgguid=0x{guid}",
        f"switchguid=0x{guid}({guid})" if switch else f"caguid=0x{guid}",
    ]
    ending = f" enhanced port 0 lid {_lid(node)} lmc 0" if switch else ""
    lines.append(f'{node.kind}\t{node.ports} "{node.id}"\t\t# "{node.name}"{ending}')
    for port, (other, other_port, rate) in sorted(node.cables.items()):
        there = f'"{other.id}"[{other_port}]' + ("" if other.kind == "Switch" else f"({other.guid:x}) ")
        if switch:
            lines.append(f'[{port}]\t{there}\t\t# "{other.name}" lid {_lid(other)} {rate}')
        else:
            lines.append(
                f'[{port}]({guid}) \t{there}\t\t# lid {_lid(node)} lmc 0 "{other.name}" lid {_lid(other)} {rate}'
            )
    return lines


def _lid(node: Made) -> int:
    return (node.guid >> 4) % 0xBFFE + 1


def main() -> None:
    """Print one fat tree."""
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = {"nodes": 8, "rails": 4, "leaves": 4, "spines": 2, "trunk": 2, "cores": 0, "pods": 1}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--degraded", type=int, default=0)
    parser.add_argument("--swap", type=int)
    parser.add_argument("--split", action="store_true")
    parser.add_argument("--sharp", action="store_true")
    parser.add_argument("--speed", default="NDR", choices=sorted(ADAPTER_DEVICE))
    sys.stdout.write(fat_tree(**vars(parser.parse_args())).text())


if __name__ == "__main__":
    main()
