"""Faults of machines: adapters, GPUs, limits, disks, engines' programs, agents that fall silent."""

from __future__ import annotations

import os
import signal

from llmgw.config.own_program import is_frozen
from llmgw.sim.hardware import hold_gpu_memory, set_gpu, set_machine, set_port
from llmgw.sim.planted.fault import Fault
from llmgw.sim.planted.site import Site

OTHER_VERSION = "0.99.0"
HELD_MIB = 30_000


def _missing_adapter(site: Site) -> None:
    with site.agent_yaml("node01") as config:
        config["fabrics"].append({"name": "ib-z", "hcas": ["mlx5_9"]})


def _undeclared(site: Site) -> None:
    with site.agent_yaml("node09") as config:
        del config["fabrics"]


def _memlock(site: Site) -> None:
    set_machine(site.hardware("node06"), "memlock")


def _no_devices(site: Site) -> None:
    set_machine(site.hardware("node07"), "no-devices")


def _engine_program(site: Site) -> None:
    with site.agent_yaml("node06") as config:
        config["engines"]["llamacpp"] = {"bin": "/bin/false"}


def _full_disk(site: Site) -> None:
    # A file system that never has any room.
    with site.agent_yaml("node06") as config:
        config["weights"] = {"dir": "/proc/llmgw-weights"}


def _skipped(site: Site) -> None:
    with site.agent_yaml("node06") as config:
        config["discovery"]["skip_gpus"] = ["17"]


def _open_key(site: Site) -> None:
    (site.fleet.folder / "node05" / "agent-key.pem").chmod(0o644)


def _left_behind(site: Site) -> None:
    site.stranger(
        "left-behind",
        LLMGW_SHARD="demo-earlier-0000.0",
        LLMGW_NODE="node03",
        LLMGW_WORK_DIR=str(site.fleet.folder / "node03" / "earlier-work"),
        LLMGW_GPUS=site.gpu("node03", 7),
    )


async def _taken(site: Site) -> None:
    hold_gpu_memory(site.hardware("node02"), [site.gpu("node02", 7)], HELD_MIB, pid=site.stranger("notebook"))


async def _shared(site: Site) -> None:
    replica = await site.replica("demo/gone")
    (shard,) = replica["shards"]
    # Not the one of demo/gone itself, which falls off the bus.
    other = await site.replica("demo/hung")
    (held,) = other["shards"]
    assert held["gpus"] != shard["gpus"] or held["node"] != shard["node"]
    uuid = site.gpu(held["node"], held["gpus"][0])
    hold_gpu_memory(site.hardware(held["node"]), [uuid], HELD_MIB, pid=site.stranger("training"))


async def _ecc(site: Site) -> None:
    set_gpu(site.hardware("node01"), 7, "ecc")


async def _gone(site: Site) -> None:
    (shard,) = (await site.replica("demo/gone"))["shards"]
    set_gpu(site.hardware(shard["node"]), shard["gpus"][0], "lost")


async def _slow_port(site: Site) -> None:
    set_port(site.hardware("node01"), "mlx5_1", "slow")


async def _no_manager(site: Site) -> None:
    set_port(site.hardware("node02"), "mlx5_1", "init")


async def _lost(site: Site) -> None:
    await site.replica("demo/lost")
    site.fleet.kill_node("node07")


async def _unreachable(site: Site) -> None:
    await site.replica("demo/cut")
    os.kill(site.fleet.pid("node08"), signal.SIGSTOP)


async def _version(site: Site) -> None:
    site.restart_as("node09", OTHER_VERSION)


FAULTS = [
    Fault(
        name="an adapter is not there", check="fabric-adapter-missing", where="mlx5_9", before=_missing_adapter
    ),
    Fault(name="a node declares no fabric", check="fabric-undeclared", where="mlx5_0", before=_undeclared),
    Fault(name="engines may lock no memory", check="memlock", where="node06", before=_memlock),
    Fault(name="the RDMA devices are not there", check="rdma-devices", where="node07", before=_no_devices),
    Fault(name="an engine's program fails", check="engine-program", where="node06", before=_engine_program),
    Fault(name="the disk of the weights is full", check="weights-room", where="node06", before=_full_disk),
    Fault(name="skip_gpus names no GPU", check="gpu-skip", where="node06", before=_skipped),
    Fault(name="others can read a private key", check="key-open", where="node05", before=_open_key),
    Fault(name="an engine that no agent tends", check="engine-left-behind", where="node03", before=_left_behind),
    Fault(name="a GPU is held by a stranger", check="gpu-taken", where="GPU 7", running=_taken),
    Fault(name="a stranger beside an engine", check="gpu-shared", where="GPU", running=_shared),
    Fault(name="a GPU has memory errors", check="gpu-unusable", where="GPU 7", running=_ecc),
    Fault(name="a GPU falls off the bus", check="gpu-lost", where="", running=_gone),
    Fault(name="… under a running engine", check="gpu-gone", where="gone-"),
    Fault(name="a link has one lane of four", check="fabric-slow", where="mlx5_1", running=_slow_port),
    Fault(name="a port without a manager", check="fabric-no-subnet-manager", where="mlx5_1", running=_no_manager),
    Fault(name="a node loses its power", check="node-lost", where="node07", running=_lost),
    Fault(name="an agent falls silent", check="node-unreachable", where="node08", running=_unreachable),
]
if not is_frozen():
    FAULTS.append(
        Fault(name="an agent of another version", check="agent-version", where="node09", running=_version)
    )
