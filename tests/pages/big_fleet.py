"""A fleet of any size behind the real admin app: nodes with eight GPUs, models, and what goes wrong in one."""

from __future__ import annotations

from typing import Any

import msgspec

from llmgw.messages.admin import ModelView, NodeView, ProfileView, ReplicaView, ShardView
from llmgw.messages.agent import FabricOffer, Gpu, Port
from llmgw.messages.findings import Finding
from llmgw.messages.upgrade_views import NodeUpgrade, UpgradeView
from tests.ctl.scripted import STARTED_AT, ScriptedBackend

GPUS = 8


def big_backend(nodes: int) -> ScriptedBackend:
    """A control plane of so many nodes, each with a replica on four of its GPUs; every tenth has a finding."""
    backend = ScriptedBackend()
    backend.nodes_known = [big_node(number) for number in range(1, nodes + 1)]
    backend.replicas_known = [big_replica(number) for number in range(1, nodes + 1)]
    profile = ProfileView(name="default", engine="vllm", nodes=1, gpus_per_node=4, wanted=nodes, ready=nodes)
    models = [
        ModelView(name=f"org/model-{number}", profiles=[profile], endpoints_ready=nodes) for number in range(20)
    ]
    backend.models_known = models
    backend.recent.models = [model.name for model in models]
    return backend


def troubled_backend() -> ScriptedBackend:
    """Fourteen nodes with nearly everything that can be wrong with one, and an upgrade on its way."""
    backend = big_backend(14)
    nodes = backend.nodes_known
    broken = [
        big_gpu(
            "gpu-node-0002", 5, 2, usable=False, unusable_kind="broken", reason="Xid 79: it fell off the bus"
        ),
        big_gpu("gpu-node-0002", 6, 2, usable=False, unusable_kind="held", reason="process 812 holds 40960 MiB"),
        big_gpu("gpu-node-0002", 7, 2, usable=False, unusable_kind="skipped", reason="skipped by the config"),
    ]
    nodes[1] = big_node(2, gpus=nodes[1].gpus[:5] + broken, findings=[gpu_finding(2)])
    nodes[2] = big_node(3, state="lost", reason="nothing was heard for 95 s", findings=[])
    nodes[3] = big_node(4, state="unreachable", reason="silent for 40 s, its shards still answer")
    nodes[4] = big_node(
        5, draining=True, drain_left=["model-0005: no other node has 4 free GPUs"], version="0.0.9"
    )
    nodes[5] = big_node(6, cordoned=True, gpus=[big_gpu("gpu-node-0006", at, 6) for at in range(16)])
    nodes[6] = big_node(7, gpus=[], gpus_in_use=[], fabrics=[], ports=[], port_fabrics={}, replicas=[])
    for number in range(8, 13):
        nodes[number - 1] = big_node(number, findings=[gpu_finding(number)])
    few = ProfileView(
        name="default", engine="vllm", nodes=2, gpus_per_node=8, wanted=2, ready=1, starting=1, failed=3,
        reason="1 of 2 wanted are ready; the next cannot be placed: no fabric has 2 nodes with 8 free GPUs",
    )  # fmt: skip
    none = ProfileView(name="big", engine="vllm", nodes=1, gpus_per_node=8, wanted=1, failed=2, reason="it fails")
    models = [
        ModelView(name="org/half", profiles=[few], endpoints_ready=1),
        ModelView(name="org/none", profiles=[none]),
        ModelView(name="elsewhere", static_endpoints=["https://api.example.org"], endpoints_ready=1),
        *backend.models_known[:3],
    ]
    backend.models_known = models
    backend.recent.models = [model.name for model in models]
    steps = {"gpu-node-0001": "upgraded", "gpu-node-0002": "restarting"}
    backend.upgrades.last = UpgradeView(
        id="u1", name="llmgw-1.0.pyz", version="1.0", sha256="0" * 64, size_bytes=1, signature="s",
        nodes=[NodeUpgrade(node=node.node_id, state=steps.get(node.node_id, "waiting")) for node in nodes],  # type: ignore[arg-type]
    )  # fmt: skip
    return backend


def gpu_finding(number: int) -> Finding:
    """What an agent says of a GPU that is gone."""
    name = f"gpu-node-{number:04}"
    return Finding(
        check="gpu-unusable",
        severity="error",
        where=f"{name} GPU 5",
        what="GPU 5 is not usable: Xid 79: it fell off the bus",
        why="It takes no new shard",
        remedy=f"`llmgw ctl drain {name}`, then power-cycle it (nvidia-smi -i 5 -r)",
    )


def big_node(number: int, **changes: Any) -> NodeView:
    """A node that works."""
    name = f"gpu-node-{number:04}"
    down = number % 10 == 0
    finding = Finding(
        check="fabric-port-down",
        severity="error",
        where=f"{name} mlx5_3",
        what="mlx5_3 port 1 is not up (DOWN, Polling): no cable or dead peer",
        why="ib-a has one rail less",
        remedy="check the cable, and the port at its other end",
    )
    facts: dict[str, Any] = {
        "node_id": name,
        "state": "ready",
        "address": f"10.0.{number // 250}.{number % 250}",
        "version": "0.1.0",
        "last_heard_s": 1.5,
        "registered_s": 86400.0,
        "certificate_expires_at": STARTED_AT,
        "gpus": [big_gpu(name, index, number) for index in range(GPUS)],
        "gpus_in_use": [0, 1, 2, 3],
        "fabrics": [FabricOffer(name="ib-a", adapters=[f"mlx5_{at}:1" for at in range(8)], usable=True)],
        "ports": [big_port(at, down and at == 3) for at in range(8)],
        "port_fabrics": {f"mlx5_{at}:1": "ib-a" for at in range(8)},
        "engines": ["vllm"],
        "replicas": [f"model-{number:04}"],
        "findings": [finding] if down else [],
    }
    return NodeView(**(facts | changes))


def big_gpu(node: str, index: int, number: int, **changes: Any) -> Gpu:
    """A GPU as busy as its number says."""
    gpu = Gpu(
        index=index,
        uuid=f"GPU-{node}-{index}",
        name="NVIDIA H200",
        memory_total_mib=143771,
        memory_used_mib=130000 if index < 4 else 4,
        utilization_percent=(number * 13 + index * 29) % 101 if index < 4 else 0,
        temperature_c=41 + index,
        driver_version="570.86.15",
        cuda_version="12.8",
        uncorrected_ecc=0,
        corrected_ecc=0,
        power_w=512.3 if index < 4 else 75.0,
        power_limit_w=700.0,
        throttled=[],
        xids={},
        paths={other: "NV18" for other in range(GPUS) if other != index},
        nvswitch=True,
        nearest_adapters=[f"mlx5_{index}"],
    )
    return msgspec.structs.replace(gpu, **changes)


def big_port(at: int, down: bool = False) -> Port:
    """Port 1 of an adapter."""
    return Port(
        adapter=f"mlx5_{at}",
        port=1,
        link_layer="InfiniBand",
        state="DOWN" if down else "ACTIVE",
        phys_state="Polling" if down else "LinkUp",
        rate_gbps=None if down else 400.0,
        rate_text=None if down else "400 Gb/sec (4X NDR)",
        lid=at + 1,
        port_guid=f"0x{at:016x}",
        counters={"symbol_error": 7 if down else 0, "link_downed": 255 if down else 0, "port_xmit_data": 10**12},
    )


def big_replica(number: int, **changes: Any) -> ReplicaView:
    """A ready replica on the first four GPUs of one node."""
    name, node = f"model-{number:04}", f"gpu-node-{number:04}"
    facts: dict[str, Any] = {
        "replica_id": name,
        "model": f"org/model-{number % 20}",
        "profile": "default",
        "engine": "vllm",
        "state": "ready",
        "since": STARTED_AT,
        "created_at": STARTED_AT,
        "nodes": [node],
        "routed": True,
        "shards": [ShardView(shard_id=f"{name}.0", rank=0, node=node, gpus=[0, 1, 2, 3], phase="ready")],
    }
    return ReplicaView(**(facts | changes))
