"""The GID that a RoCE port should use: which one, and what is wrong when there is none. Pure but for `read_gids`,
which reads a port's table below a folder.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path

from llmgw.config.agent import FabricDeclaration
from llmgw.hardware.sysfs import list_names, read_text
from llmgw.messages.agent import GIDS_PER_PORT_MAX, Gid, Port
from llmgw.messages.findings import Finding

# Tables have up to 256 entries; containers with interfaces of their own were seen to use 4 to 8 (nccl#1573).
_TABLE_MAX = 64
_GID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){7}")
_WORD_CHARS_MAX = 64
_WHY = "NCCL would take the first entry, which is link-local, and time out"


def read_gids(port: Path) -> list[Gid]:
    """The entries in use of the port with this folder (`ports/1`), by index. Unused ones are zero or EINVAL."""
    gids: list[Gid] = []
    for name in list_names(port / "gids")[:_TABLE_MAX]:
        text = (read_text(port / "gids" / name) or "").lower()
        if not name.isdecimal() or not _GID.fullmatch(text) or not text.strip("0:"):
            continue
        if len(gids) >= GIDS_PER_PORT_MAX:
            break
        attributes = port / "gid_attrs"
        gids.append(
            Gid(
                index=int(name),
                gid=text,
                type=_word(read_text(attributes / "types" / name)),
                netdev=_word(read_text(attributes / "ndevs" / name)),
            )
        )
    return gids


def choose_gid(gids: Iterable[Gid]) -> Gid | None:
    """The entry for RoCE v2 with an IPv4 address, else with an IPv6 one that is routed, the lowest index first;
    None when there is neither. A link-local one is never chosen: it reaches no other subnet (openucx/ucx#10939).
    """
    usable = [(gid, kind) for gid in gids if gid.type == "RoCE v2" and (kind := _kind(gid.gid)) is not None]
    return min(usable, key=lambda pair: (pair[1], pair[0].index), default=(None, 0))[0]


def gid_indexes(ports: Iterable[Port]) -> dict[str, int | None]:
    """RoCE port as NCCL names it (`mlx5_0:1`) → the index of the GID that it should use, None when it has none.

    InfiniBand ports need no index and are not in it.
    """
    found: dict[str, int | None] = {}
    for port in ports:
        if port.link_layer == "Ethernet":
            gid = choose_gid(port.gids)
            found[f"{port.adapter}:{port.port}"] = gid.index if gid is not None else None
    return found


def gid_findings(declared: list[FabricDeclaration], ports: list[Port]) -> list[Finding]:
    """RoCE ports of declared fabrics without a GID to use, and fabrics whose ports would need different ones."""
    findings: list[Finding] = []
    for fabric in declared:
        chosen: dict[str, int] = {}
        for port in ports:
            name = f"{port.adapter}:{port.port}"
            named = any(hca in (port.adapter, name) for hca in fabric.hcas)
            # Without any table (an old saved tree) nothing is known of it.
            if not named or port.link_layer != "Ethernet" or not port.is_up or not port.gids:
                continue
            index = gid_indexes([port])[name]
            if index is None:
                findings.append(_missing(fabric.name, port))
            else:
                chosen[name] = index
        if len(set(chosen.values())) > 1:
            findings.append(_different(fabric.name, chosen))
    return findings


def _missing(fabric: str, port: Port) -> Finding:
    netdev = next((gid.netdev for gid in port.gids if gid.netdev), None)
    interface = netdev or f"the interface of {port.adapter}"
    return Finding(
        check="roce-gid",
        severity="error",
        where=f"{fabric} {port.adapter}",
        what=f"{port.adapter} port {port.port} has no RoCE v2 GID with an address that others reach",
        why=_WHY,
        remedy=f"give {interface} an IPv4 address (ip addr add ADDRESS/BITS dev {netdev or 'IFACE'}), also "
        "in the network configuration",
    )


def _different(fabric: str, chosen: dict[str, int]) -> Finding:
    told = ", ".join(f"{index} on {port}" for port, index in chosen.items())
    return Finding(
        check="roce-gid-differs",
        severity="warning",
        where=fabric,
        what=f"the GIDs to use have different indexes: {told}",
        why="NCCL_IB_GID_INDEX holds one number for all adapters of a node, so that some would use a wrong one",
        remedy="give all of the fabric's interfaces the same kinds of addresses in the same order (show_gids)",
    )


def _kind(gid: str) -> int | None:
    """0 for an IPv4 address, 1 for an IPv6 one that is routed, None for one that is not."""
    address = ipaddress.IPv6Address(gid)
    mapped = address.ipv4_mapped
    if mapped is not None:
        return None if mapped.is_link_local or mapped.is_unspecified else 0
    return None if address.is_link_local or address.is_multicast or address.is_loopback else 1


def _word(text: str | None) -> str | None:
    return text[:_WORD_CHARS_MAX] if text else None
