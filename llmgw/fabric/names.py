"""Which adapter is which node's: by GUID from the agents' inventories, by description only as a marked guess.

Descriptions are no identities: `ubuntu HCA-1` may be six machines, and `HCA-5` is `mlx5_2` on one of them and
`mlx5_4` on another. Only GUIDs join the map with what agents say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from llmgw.fabric.records import parse_guid
from llmgw.fabric.topology import Node, Topology
from llmgw.messages.agent import Port

# `node0001 HCA-1`, `node0001 mlx5_0`, `node0001 ibp11s0f0`: what rdma-ndd and OFED set (NodeDescription).
_DESCRIPTION = re.compile(r"(\S+)\s+((HCA|mlx\d+|ib\w*|roce\w*|rdma\w*|rocep\w*|hfi\d*)[-_]?([0-9]\S*)?)\Z")
# What the firmware says until something sets a name.
_NO_NAME = re.compile(
    r"(?:MT\d{4,5}\b|.*Mellanox Technologies|.*\bHCA\b.*\bInfiniBand\b|Hca[-_]?\d*\Z|ConnectX|\s*\Z)",
    re.IGNORECASE,
)
_MANAGED_SWITCH = re.compile(r"MF0;([^:;]+):[^:;/]+/[^:;/]+")
_NOBODY = frozenset({"localhost", "localhost.localdomain", "ubuntu", "debian", "centos", "rocky", "(none)"})
# NVIDIA's manager of whole fabrics runs on hosts of its own.
_MANAGER_NAME = re.compile(r"(?:\b|_)ufm", re.IGNORECASE)


class Owner(msgspec.Struct, frozen=True):
    """Whose an adapter is. By description it is a guess, and `node` only what the description calls it."""

    node: str
    adapter: str
    """`mlx5_0` by GUID; whatever the description has (`HCA-1`) as a guess."""
    known_by: Literal["guid", "description"]


def find_owners(topology: Topology, inventories: Mapping[str, Iterable[Port]] | None = None) -> dict[str, Owner]:
    """The owner of every adapter that has one, by node id of the map.

    `inventories`: the ports of each node that has an agent. An adapter whose node or port GUID an agent reports
    is that node's whatever its description says. Of the others a description names a host, unless two adapters
    carry the same one, or the name is what an unconfigured system calls itself.
    """
    owners = _by_guid(topology, inventories or {})
    guesses = {
        node.id: match
        for node in topology.of_kind("adapter")
        if node.id not in owners and not is_unnamed(node) and (match := _DESCRIPTION.match(node.name or ""))
    }
    times = Counter(match[0].split()[0] + " " + match[2] for match in guesses.values())
    shared = {key.split()[0] for key, count in times.items() if count > 1}
    for node_id, match in guesses.items():
        if match[1] not in shared and match[1].lower() not in _NOBODY:
            owners[node_id] = Owner(match[1], match[2], "description")
    return owners


def is_unnamed(node: Node) -> bool:
    """Whether an adapter's description names its kind instead of a host."""
    return not node.name or _NO_NAME.match(node.name) is not None


def short_name(label: str) -> str:
    """`MF0;sw-leaf-001:MQM9700/U1` → `sw-leaf-001`: what NVIDIA's switches put around their host name."""
    match = _MANAGED_SWITCH.fullmatch(label)
    return match[1] if match else label


def told_apart(name: str | None, guid: str) -> str:
    """`leaf-1 (0x…)`: names are shared, and GUIDs are not read by people."""
    return f"{short_name(name)} ({guid})" if name else guid


def manager_hosts(topology: Topology, managers: Iterable[int] = ()) -> set[str]:
    """Ids of adapters on hosts that manage the fabric: with a manager's port GUID, or named after UFM."""
    guids = set(managers)
    return {
        node.id
        for node in topology.of_kind("adapter")
        if node.guid in guids
        or not guids.isdisjoint(node.port_guids.values())
        or _MANAGER_NAME.match(node.name or "")
    }


def _by_guid(topology: Topology, inventories: Mapping[str, Iterable[Port]]) -> dict[str, Owner]:
    claims: dict[int, set[Owner]] = {}
    for host, ports in inventories.items():
        for port in ports:
            owner = Owner(host, port.adapter, "guid")
            for text in (port.node_guid, port.port_guid):
                guid = parse_guid((text or "").replace(":", ""))
                if guid is not None:
                    claims.setdefault(guid, set()).add(owner)
    found: dict[str, Owner] = {}
    for node in topology.of_kind("adapter"):
        # Port GUIDs first: the two functions of a dual-port card, and VFs, may share a node GUID.
        for guid in (*node.port_guids.values(), node.guid):
            owners = claims.get(guid or 0, set())
            if len(owners) == 1:
                found[node.id] = next(iter(owners))
                break
    return found
