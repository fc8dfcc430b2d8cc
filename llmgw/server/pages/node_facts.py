"""What the page of a node shows, made of what the API says of it: GPUs, ports, and what runs there. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from llmgw.hardware.counters import counter_text
from llmgw.messages.admin import NodeView, ReplicaView, ShardView
from llmgw.messages.agent import Gpu, Port
from llmgw.messages.findings import Finding
from llmgw.server.pages.node_words import GPU_TONES, Badge, Tone, gpu_states

# Of `counters` and `hw_counters` (Documentation/ABI/stable/sysfs-class-infiniband, and those of mlx5): what
# counts faults. The rest counts traffic.
_ERRORS = re.compile(r"(?:^|_)(?:err|errors?|discards|dropped|downed|recovery|out_of_\w+)(?:_|$)")


@dataclass(frozen=True, slots=True)
class Running:
    """A shard on the node."""

    replica: ReplicaView
    shard: ShardView


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU. `peers` says which others it has NVLinks with; None: that is not known. `notes`: errors that it
    counted, and what holds its clocks down."""

    gpu: Gpu
    state: Badge
    peers: str | None
    mig: str | None
    notes: list[Badge]
    runs: list[Running]


@dataclass(frozen=True, slots=True)
class PortRow:
    """A port, the fabric that it carries, and each error counter that is not zero."""

    port: Port
    name: str
    fabric: str | None
    state: Badge
    errors: list[tuple[str, str]]


def with_findings(nodes: Iterable[NodeView], findings: Iterable[Finding]) -> list[NodeView]:
    """The nodes, each with all that is found of it: what its view has, and what only the fleet's `findings` have,
    such as that it is lost."""
    nodes = list(nodes)
    found: dict[str, list[Finding]] = {node.node_id: list(node.findings) for node in nodes}
    for finding in findings:
        of_it = found.get(finding.where.partition(" ")[0])
        if of_it is not None and finding not in of_it:
            of_it.append(finding)
    return [msgspec.structs.replace(node, findings=found[node.node_id]) for node in nodes]


def running_on(node_id: str, replicas: Iterable[ReplicaView]) -> list[Running]:
    """The shards that sit on a node, as the replicas tell them."""
    return [Running(replica, shard) for replica in replicas for shard in replica.shards if shard.node == node_id]


def gpu_rows(node: NodeView, running: Iterable[Running]) -> list[GpuRow]:
    """The GPUs of a node in their order."""
    on: dict[int, list[Running]] = {}
    for each in running:
        for index in each.shard.gpus:
            on.setdefault(index, []).append(each)
    return [
        GpuRow(
            gpu=gpu,
            state=Badge(GPU_TONES[state], state),
            peers=_peers(gpu, len(node.gpus)),
            mig=_mig(gpu),
            notes=_notes(gpu),
            runs=on.get(gpu.index, []),
        )
        for gpu, state in zip(node.gpus, gpu_states(node), strict=True)
    ]


def port_rows(node: NodeView) -> list[PortRow]:
    """The ports of a node, those that carry a fabric first."""
    rows = [_port(port, node.port_fabrics.get(f"{port.adapter}:{port.port}")) for port in node.ports]
    return sorted(rows, key=lambda row: row.fabric is None)


def shared_facts(gpus: Iterable[Gpu]) -> dict[str, str]:
    """What is the same for all GPUs of a node, by what it is: said once, above them."""
    gpus = list(gpus)
    said: list[tuple[str, set[str | None]]] = [
        ("GPU", {gpu.name for gpu in gpus}),
        ("Driver", {gpu.driver_version for gpu in gpus}),
        ("CUDA", {gpu.cuda_version for gpu in gpus}),
    ]
    found = {what: next(iter(values)) for what, values in said if len(values) == 1}
    return {what: value for what, value in found.items() if value}


def _peers(gpu: Gpu, gpus: int) -> str | None:
    peers, paths = gpu.nvlink_peers, gpu.paths
    if peers is None or paths is None:
        return None
    if not peers:
        return "none" if gpus > 1 else "–"
    kinds = "/".join(sorted({paths[index] for index in peers}))
    whom = f"all {len(peers)}" if len(peers) == gpus - 1 else ", ".join(map(str, peers))
    return f"{whom} ({kinds}{', by switch' if gpu.nvswitch else ''})"


def _notes(gpu: Gpu) -> list[Badge]:
    notes = []
    if gpu.uncorrected_ecc:
        notes.append(
            Badge("warn", f"{gpu.uncorrected_ecc:,} uncorrectable memory {_errors(gpu.uncorrected_ecc)}")
        )
    if gpu.corrected_ecc:
        notes.append(Badge("quiet", f"{gpu.corrected_ecc:,} corrected memory {_errors(gpu.corrected_ecc)}"))
    if gpu.xids:
        counts = ", ".join(
            f"{xid} ({'once' if count == 1 else f'{count:,} times'})" for xid, count in sorted(gpu.xids.items())
        )
        notes.append(Badge("warn", f"Xid {counts} in the kernel's log"))
    if gpu.throttled:
        # A GPU at its power limit works as it should.
        tone: Tone = "quiet" if gpu.throttled == ["power"] else "warn"
        notes.append(Badge(tone, f"clocks held down: {', '.join(gpu.throttled)}"))
    return notes


def _errors(count: int) -> str:
    return "error" if count == 1 else "errors"


def _mig(gpu: Gpu) -> str | None:
    if not gpu.mig:
        return None
    profiles = [device.profile or "unknown" for device in gpu.mig_devices]
    return f"cut into {', '.join(profiles)}" if profiles else "on, without devices"


def _port(port: Port, fabric: str | None) -> PortRow:
    tone: Tone = "good" if port.is_up else "bad" if fabric is not None else "quiet"
    return PortRow(
        port=port,
        name=f"{port.adapter}:{port.port}",
        fabric=fabric,
        state=Badge(tone if port.state else "quiet", port.state or "unknown"),
        errors=[
            (name, counter_text(name, count))
            for name, count in sorted(port.counters.items())
            if count and _ERRORS.search(name)
        ],
    )
