"""Which interfaces and adapters the ranks of a replica talk over, as the variables that NCCL, Gloo and the
libraries that move KV caches read.

Pure: interfaces, adapters, nearness and GIDs are arguments. NCCL's variables are those of its user guide
(docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from llmgw.engines.base import LaunchContext, PlanFile
from llmgw.engines.kv_transfer import transfer_env, transfer_file
from llmgw.messages.agent import Gpu, ShardSpec

# Where the interface of the management address cannot be found: the name that most clouds and containers use.
LAST_RESORT_INTERFACE = "eth0"

_INTERFACE = "the agent names the interface that holds the node's address"
_FABRIC = "the agent chooses the fabric's adapters"
_OF_A_NODE = "it differs from node to node"
_MASTER = "the agent says where the ranks of a replica meet"

REFUSED_NETWORK_ENV: Mapping[str, str] = {
    **dict.fromkeys(
        ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME"], _INTERFACE
    ),
    **dict.fromkeys(["NCCL_SOCKET_FAMILY", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE"], _INTERFACE),
    **dict.fromkeys(["NCCL_IB_GID_INDEX", "NCCL_IB_ROCE_VERSION_NUM"], _OF_A_NODE),
    **dict.fromkeys(["UCX_IB_GID_INDEX", "MC_GID_INDEX"], _OF_A_NODE),
    **dict.fromkeys(["NCCL_CONF_FILE", "NCCL_COMM_ID"], _FABRIC),
    **dict.fromkeys(["MC_CUSTOM_TOPO_JSON", "MC_IB_PORT"], _FABRIC),
    **dict.fromkeys(["MASTER_ADDR", "MASTER_PORT"], _MASTER),
    **dict.fromkeys(["RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE"], "the control plane counts the ranks"),
}
"""Variables of the network that no profile sets, and why."""

# A profile may name some of the fabric's adapters in these.
_NARROWED = ("NCCL_IB_HCA", "UCX_NET_DEVICES")

# The proof that the fabric is used is read from what NCCL says of itself under these.
_DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}


def network_env(spec: ShardSpec, context: LaunchContext) -> tuple[dict[str, str], list[str]]:
    """(the variables of this shard on this node, sentences about what had to be guessed).

    The profile's `NCCL_IB_HCA` and `UCX_NET_DEVICES`, which may only narrow the choice, are in it;
    `network_problems` was empty.
    """
    env: dict[str, str] = {}
    warnings: list[str] = []
    interface = context.mgmt_interface
    if interface is None and spec.nodes > 1:
        interface = LAST_RESORT_INTERFACE
        warnings.append(
            f"no interface holds {context.address}, so the ranks are told to use {LAST_RESORT_INTERFACE}; set "
            "mgmt_interface in agent.yaml"
        )
    if interface is not None:
        # NCCL takes a name for a beginning unless `=` stands before it; the others take names as they are.
        env |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
        env["TP_SOCKET_IFNAME"] = interface
        if ":" in context.address:
            env["NCCL_SOCKET_FAMILY"] = "AF_INET6"
    if spec.nodes == 1:
        return env, warnings
    adapters = _adapters(spec, context)
    if adapters:
        env["NCCL_IB_HCA"] = "=" + ",".join(adapters)
        index, warning = _gid_index_of_all(adapters, context.gid_indexes)
        if index is not None:
            env["NCCL_IB_GID_INDEX"] = str(index)
        wanted = spec.env.get("UCX_NET_DEVICES")
        for_ucx = adapters if wanted is None else nearest_first(_narrowed(wanted, context.adapters), context.gpus)
        env |= transfer_env(adapters, for_ucx, index, context.work_dir)
        if warning is not None:
            warnings.append(warning)
    return env | _DEBUG, warnings


def network_files(spec: ShardSpec, context: LaunchContext) -> list[PlanFile]:
    """The files that `network_env` names."""
    adapters = _adapters(spec, context) if spec.nodes > 1 else []
    return [transfer_file(adapters, context.gpus, context.work_dir)] if adapters else []


def beside_networks(spec: ShardSpec) -> dict[str, str]:
    """The profile's own variables, without those that `network_env` has narrowed already."""
    return {name: value for name, value in spec.env.items() if spec.nodes == 1 or name not in _NARROWED}


def network_problems(spec: ShardSpec, context: LaunchContext) -> list[str]:
    """Sentences for what a profile's `env` would change of the networks; a fabric may only be narrowed.

    A replica of one node uses no fabric: there the switches that turn it off are harmless.
    """
    sentences = []
    if spec.nodes > 1:
        if spec.env.get("NCCL_IB_DISABLE", "0") != "0":
            sentences.append(_off("NCCL_IB_DISABLE"))
        if spec.env.get("NCCL_NET", "IB").upper() != "IB":
            sentences.append(_off("NCCL_NET"))
        if "MC_FORCE_TCP" in spec.env:
            sentences.append(_off("MC_FORCE_TCP"))
        for name in _NARROWED:
            if name in spec.env:
                sentences += _narrowing_problems(name, spec.env[name], context.adapters)
    return sentences


def nearest_first(adapters: Sequence[str], gpus: Sequence[Gpu]) -> list[str]:
    """`adapters` (`mlx5_0:1`) in the order of their nearness to these GPUs; those that nobody ranks come last.

    Each GPU's nearest come before any GPU's second: with one adapter a GPU, every one of them is in front.
    """
    ranked: list[str] = []
    lists = [gpu.nearest_adapters or [] for gpu in gpus]
    for place in range(max(map(len, lists), default=0)):
        for names in lists:
            if place < len(names):
                ranked += _matching(names[place], adapters)
    return list(dict.fromkeys([*ranked, *adapters]))


def _adapters(spec: ShardSpec, context: LaunchContext) -> list[str]:
    """The ports that this shard may use, those nearest to its GPUs first."""
    return nearest_first(_narrowed(spec.env.get("NCCL_IB_HCA"), context.adapters), context.gpus)


def _narrowing_problems(name: str, wanted: str, adapters: Sequence[str]) -> list[str]:
    has = ", ".join(adapters) or "none"
    if wanted.startswith("^"):
        return [f"env sets {name} to {wanted}, which excludes; name the adapters that may be used, of {has}"]
    if not _items(wanted):
        return [f"env sets {name} to nothing, which names every adapter; name some of {has}"]
    return [
        f"env sets {name} to {wanted}, and {item} is not a usable adapter of this shard's fabric on this node, "
        f"which has {has}; a profile may only narrow the choice"
        for item in _items(wanted)
        if not _matching(item, adapters)
    ]


def _gid_index_of_all(
    adapters: Sequence[str], gid_indexes: Mapping[str, int | None]
) -> tuple[int | None, str | None]:
    """The one index that is right for every RoCE adapter: NCCL takes one for all of a node."""
    found = {adapter: gid_indexes[adapter] for adapter in adapters if adapter in gid_indexes}
    without = [adapter for adapter, index in found.items() if index is None]
    if without:
        return None, (
            f"{', '.join(without)} has no RoCE v2 address (IPv4, or IPv6 that can be routed), so NCCL chooses by "
            "itself; give its network interface an address"
        )
    indexes = set(found.values())
    if len(indexes) > 1:
        shown = ", ".join(f"{adapter} {index}" for adapter, index in found.items())
        return None, (
            f"the RoCE v2 addresses stand at different places of the GID tables ({shown}) and NCCL takes one "
            "index for all, so it chooses by itself; configure the interfaces alike"
        )
    return (indexes.pop() if indexes else None), None


def _narrowed(wanted: str | None, adapters: Sequence[str]) -> list[str]:
    if wanted is None:
        return list(adapters)
    return list(dict.fromkeys(adapter for item in _items(wanted) for adapter in _matching(item, adapters)))


def _items(wanted: str) -> list[str]:
    return [item for part in wanted.removeprefix("=").split(",") if (item := part.strip())]


def _matching(item: str, adapters: Sequence[str]) -> list[str]:
    """The ports that `mlx5_0` or `mlx5_0:1` names."""
    return [adapter for adapter in adapters if item in (adapter, re.sub(r":\d+$", "", adapter))]


def _off(name: str) -> str:
    return f"env sets {name}, which keeps the replica's nodes off their fabric; remove it from the profile's env"
