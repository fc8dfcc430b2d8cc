"""A Ray cluster of one replica's nodes, for vLLM: a head beside the leader, and one joining process a worker.

Flags as of Ray 2.60. Ray runs whatever code reaches its ports, so an agent starts it only where it was told to.
"""

from __future__ import annotations

import hashlib
import json

from llmgw.config.addresses import join_host_port
from llmgw.engines.base import LaunchContext, PlanFile, ProcessPlan
from llmgw.engines.kv_transfer import OF_EACH_NODE
from llmgw.messages.agent import Rendezvous, ShardSpec

# Ports that Ray would else choose by itself; the last one is the head's alone (Ray's client server, which stands
# at 10001 on every head otherwise).
_PORT_FLAGS = (
    "--node-manager-port",
    "--object-manager-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--runtime-env-agent-port",
    "--metrics-export-port",
    "--ray-client-server-port",
)

# Ray puts `/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store` behind it, and the path of a Unix
# socket holds 107 bytes (man unix).
_TEMP_DIR_CHARS_MAX = 40

# vLLM copies its own process's NCCL_*, UCX_* and VLLM_* to the workers of all nodes, and lately everything; these
# are each node's own.
_OF_EACH_NODE = (
    *("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"),
    *("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "VLLM_HOST_IP", "VLLM_API_KEY"),
    *OF_EACH_NODE,
    # By these an agent knows its processes.
    *("LLMGW_SHARD", "LLMGW_WORK_DIR", "LLMGW_NODE", "LLMGW_GPUS"),
)


def ray_ports(spec: ShardSpec) -> int:
    """How many ports one node of the cluster needs beside the rendezvous, where the head listens."""
    return len(_PORT_FLAGS) if spec.rank == 0 else len(_PORT_FLAGS) - 1


def ray_process(
    spec: ShardSpec, context: LaunchContext, program: str, env: dict[str, str], name: str
) -> ProcessPlan:
    """The head (rank 0) or the process that joins it. `env` is what the engine's own workers on this node get.

    Ray gives every process that it starts the environment of the one that joined, so each node keeps its own
    interfaces, adapters and GPUs.
    """
    rendezvous = ray_head(context)
    argv = [program, "start"]
    if spec.rank == 0:
        argv += ["--head", "--port", str(rendezvous.port), "--include-dashboard", "false"]
    else:
        argv += ["--address", join_host_port(rendezvous.host, rendezvous.port)]
    argv += ["--node-ip-address", context.address, "--num-gpus", str(len(context.gpus))]
    for flag, port in zip(_PORT_FLAGS, context.extra_ports, strict=False):
        argv += [flag, str(port)]
    argv += ["--temp-dir", _temp_dir(context.work_dir), "--disable-usage-stats", "--block"]
    return ProcessPlan(name=name, argv=argv, env=env)


def ray_head(context: LaunchContext) -> Rendezvous:
    """Where the cluster's head listens. Raises ValueError when nobody has said."""
    if context.rendezvous_host is None or context.rendezvous_port is None:
        raise ValueError("a replica over Ray was given no rendezvous")
    return Rendezvous(host=context.rendezvous_host, port=context.rendezvous_port)


def ray_address(context: LaunchContext) -> dict[str, str]:
    """The variables by which vLLM finds its cluster, and the list of what it is not to copy to other nodes."""
    head = ray_head(context)
    return {"RAY_ADDRESS": join_host_port(head.host, head.port), "VLLM_CONFIG_ROOT": context.work_dir}


def not_carried_over(context: LaunchContext) -> PlanFile:
    """The file in `VLLM_CONFIG_ROOT` that keeps vLLM from giving every node the leader's interfaces and key."""
    return PlanFile(
        path=f"{context.work_dir}/ray_non_carry_over_env_vars.json", content=json.dumps(list(_OF_EACH_NODE))
    )


def _temp_dir(work_dir: str) -> str:
    inside = f"{work_dir}/ray"
    if len(inside.encode()) <= _TEMP_DIR_CHARS_MAX:
        return inside
    return f"/tmp/llmgw-ray-{hashlib.sha256(work_dir.encode()).hexdigest()[:10]}"
