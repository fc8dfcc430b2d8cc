"""Plans for vLLM and SGLang, carried out by the agent's own supervisor on programs with their command lines and
manners.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.agent.gpu_memory import GpuMemory
from llmgw.agent.processes import uncovered
from llmgw.agent.supervisor import Supervisor, real_work_dir
from llmgw.config.agent import AgentConfig
from llmgw.engines.registry import adapter
from llmgw.messages.agent import FabricOffer, Gid, HeldShard, Inventory, Port, Rendezvous, ShardSpec
from tests.agent.fakes import GPUS, IDLE, FixedInventory
from tests.engines.running import http

PROGRAMS = Path(__file__).parent / "programs"
# Below the ports that the kernel gives out, and beside those of tests/agent.
_LOW = 9000 + os.getpid() % 40 * 200
ADAPTERS = ["mlx5_0", "mlx5_1"]
# A RoCE fabric whose second adapter is the one near the GPUs.
ROCE = Inventory(
    gpus=[msgspec.structs.replace(gpu, nearest_adapters=["mlx5_1"]) for gpu in GPUS],
    ports=[
        Port(
            adapter=name,
            port=1,
            link_layer="Ethernet",
            state="ACTIVE",
            gids=[
                Gid(index=1, gid="fe80:0000:0000:0000:0e42:a1ff:fef7:7b9a", type="RoCE v2"),
                Gid(index=3, gid="0000:0000:0000:0000:0000:ffff:0a60:531a", type="RoCE v2"),
            ],
        )
        for name in ADAPTERS
    ],
    fabrics=[FabricOffer(name="roce-a", adapters=[f"{name}:1" for name in ADAPTERS], usable=True)],
)


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """`vllm`, `ray`, and a `sglang` that stands for the Python with SGLang, as programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("vllm", "ray", "sglang"):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{PROGRAMS / name}.py" "$@"\n')
        program.chmod(0o755)
    return folder


@asynccontextmanager
async def node(folder: Path, bin_dir: Path, address: str, launch_mode: str = "mp") -> AsyncIterator[Supervisor]:
    """A supervisor of a node with this address; whatever it started is killed at the end."""
    low = _LOW + 100 * (address != "127.0.0.1")
    config = AgentConfig.model_validate(
        {
            "node_id": "node01",
            "server": "https://127.0.0.1:1",
            "mgmt_addr": address,
            "engines": {
                "vllm": {"bin": str(bin_dir / "vllm"), "launch_mode": launch_mode},
                "sglang": {"python": str(bin_dir / "sglang")},
            },
            "supervisor": {
                "work_dir": str(folder),
                "health_interval": "50ms",
                "stop_timeout": "5s",
                "port_range": f"{low}-{low + 99}",
            },
        }
    )
    supervisor = Supervisor(
        config=config,
        address=address,
        adapter=adapter,
        inventory=FixedInventory(ROCE),
        gpu_memory=GpuMemory(lambda: IDLE, work_dir=real_work_dir(config)),
        mgmt_interface="lo",
        base_env={"PATH": os.environ["PATH"], "HF_TOKEN": "hf_from_the_agent", "AWS_SECRET": "s"},
    )
    await supervisor.adopt()
    try:
        yield supervisor
    finally:
        await supervisor.close()
        for info in uncovered(os.path.realpath(folder), []):
            os.kill(info.pid, signal.SIGKILL)


def shard(rank: int = 0, **changes: Any) -> ShardSpec:
    values: dict[str, Any] = {
        "shard_id": f"r1.{rank}",
        "replica_id": "r1",
        "model": "big",
        "profile": "p",
        "profile_hash": "h",
        "served_names": ["org/big", "big"],
        "rank": rank,
        "gpus": ["GPU-0"],
        "engine": "vllm",
        "source": "org/big",
        "rendezvous_timeout_s": 15.0,
    }
    return ShardSpec(**{**values, **changes})


async def reach(supervisor: Supervisor, phase: str, deadline_s: float = 20.0) -> HeldShard:
    async with asyncio.timeout(deadline_s):
        while True:
            (held,) = await supervisor.held()
            if held.phase == phase:
                return held
            assert held.phase not in ("stopped", "failed"), f"{held.phase}: {held.reason} {held.output_tail}"
            await asyncio.sleep(0.02)


def started(folder: Path, name: str = "started.json") -> dict[str, Any]:
    (path,) = folder.glob(f"shards/*/**/{name}")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(), 40)

    asyncio.run(limited())


def test_one_node_becomes_ready_by_a_token_and_answers_to_all_its_names(
    tmp_path: Path, bin_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def test() -> None:
        async with node(tmp_path / "w", bin_dir, "127.0.0.1") as one:
            await one.start(shard(args=["--max-model-len", "4096"], env={"VLLM_NO_USAGE_STATS": "0"}))
            held = await reach(one, "ready")
            what = started(tmp_path / "w")
            key = what["env"]["VLLM_API_KEY"]
            for name in ("org/big", "big"):
                body = {"model": name, "messages": []}
                url = f"http://127.0.0.1:{held.http_port}/v1/chat/completions"
                answer = http.post(url, json=body, headers={"authorization": f"Bearer {key}"})
                assert answer.json()["model"] == name
            assert "VLLM_NO_USAGE_STATS" in capsys.readouterr().out, "the agent's log tells what contradicts"
            assert what["env"]["HF_TOKEN"] == "hf_from_the_agent"
            assert "AWS_SECRET" not in what["env"]
            assert what["env"]["PATH"].split(":")[0] == str(bin_dir)
            await one.stop("r1.0", "test")
            assert (await reach(one, "stopped")).exit_code == 0

    run(test)


def test_two_nodes_meet_and_each_has_its_own_rank_and_address(tmp_path: Path, bin_dir: Path) -> None:
    async def test() -> None:
        several: dict[str, Any] = {"nodes": 2, "tensor_parallel": 2, "fabric": "roce-a"}
        async with (
            node(tmp_path / "a", bin_dir, "127.0.0.1") as first,
            node(tmp_path / "b", bin_dir, "127.0.0.2") as second,
        ):
            await first.start(shard(0, **several))
            held = await reach(first, "starting")
            assert held.rendezvous_port is not None
            meeting = Rendezvous(host="127.0.0.1", port=held.rendezvous_port)
            await second.start(shard(1, rendezvous=meeting, **several))
            await reach(second, "ready")
            await reach(first, "ready")
            log = (tmp_path / "a" / "shards" / "r1.0" / "engine.log").read_text()
            assert "joined: rank 1 from 127.0.0.2" in log
            env = started(tmp_path / "b")["env"]
            assert env["NCCL_IB_HCA"] == "=mlx5_1:1,mlx5_0:1"
            assert env["NCCL_IB_GID_INDEX"] == "3"
            assert (env["UCX_NET_DEVICES"], env["UCX_IB_GID_INDEX"]) == ("mlx5_1:1,mlx5_0:1", "3")
            topology = json.loads(Path(env["MC_CUSTOM_TOPO_JSON"]).read_text())
            assert topology["cuda:0"] == [["mlx5_1"], ["mlx5_0"]]
            assert env["NCCL_SOCKET_IFNAME"] == "=lo"
            for one, name in ((first, "r1.0"), (second, "r1.1")):
                await one.stop(name, "test")
                await reach(one, "stopped")

    run(test)


def test_over_ray_the_engine_waits_for_its_head_and_the_workers_join_it(tmp_path: Path, bin_dir: Path) -> None:
    async def test() -> None:
        several: dict[str, Any] = {"nodes": 2, "tensor_parallel": 2, "fabric": "roce-a"}
        async with (
            node(tmp_path / "a", bin_dir, "127.0.0.1", "ray") as first,
            node(tmp_path / "b", bin_dir, "127.0.0.2", "ray") as second,
        ):
            await first.start(shard(0, **several))
            held = await reach(first, "starting")
            assert held.rendezvous_port is not None
            meeting = Rendezvous(host="127.0.0.1", port=held.rendezvous_port)
            await second.start(shard(1, rendezvous=meeting, **several))
            await reach(second, "ready")
            await reach(first, "ready")
            assert started(tmp_path / "a")["env"]["RAY_ADDRESS"] == f"127.0.0.1:{held.rendezvous_port}"
            joined = started(tmp_path / "b", "ray-started.json")
            assert joined["argv"][1:3] == ["--address", f"127.0.0.1:{held.rendezvous_port}"]
            assert joined["env"]["VLLM_HOST_IP"] == "127.0.0.2"
            await first.stop("r1.0", "test")
            await reach(first, "stopped")

    run(test)


def test_a_head_that_dies_ends_the_start_with_its_own_output(tmp_path: Path, bin_dir: Path) -> None:
    (bin_dir / "ray").write_text("#!/bin/sh\necho 'ray: no space left on device'\nexit 3\n")

    async def test() -> None:
        async with node(tmp_path / "a", bin_dir, "127.0.0.1", "ray") as first:
            await first.start(shard(0, nodes=2, tensor_parallel=2, fabric="roce-a"))
            held = await reach(first, "failed")
            assert held.reason is not None
            assert held.reason.startswith("ray ")
            assert "ray: ray: no space left on device" in held.output_tail

    run(test)


def test_a_spelling_that_argparse_would_take_never_reaches_it(tmp_path: Path, bin_dir: Path) -> None:
    async def test() -> None:
        async with node(tmp_path / "w", bin_dir, "127.0.0.1") as one:
            await one.start(shard(args=["--hos", "0.0.0.0"]))
            (held,) = await one.held()
            assert held.phase == "failed"
            assert "takes for --host" in (held.reason or "")
            assert not list((tmp_path / "w").glob("shards/*/**/started.json"))

    run(test)


def test_sglang_demands_the_key_of_its_file_and_what_it_prints_of_it_never_leaves_the_node(
    tmp_path: Path, bin_dir: Path
) -> None:
    async def test() -> None:
        async with node(tmp_path / "w", bin_dir, "127.0.0.1") as one:
            await one.start(shard(engine="sglang", served_names=["big", "huge"]))
            held = await reach(one, "ready")
            url = f"http://127.0.0.1:{held.http_port}/v1/chat/completions"
            assert http.post(url, json={"model": "big"}).status_code == 401
            assert held.api_key is not None
            headers = {"authorization": f"Bearer {held.api_key}"}
            assert http.post(url, json={"model": "huge"}, headers=headers).json()["model"] == "huge"

            (log,) = (tmp_path / "w").glob("shards/*/engine.log")
            assert held.api_key in log.read_text(), "else this test shows nothing"
            assert log.stat().st_mode & 0o077 == 0
            piece = await one.read_log(request_id="1", shard_id="r1.0", stream="engine", offset=0, lines=0)
            assert "server_args" in piece.text
            assert held.api_key not in piece.text
            assert held.engine_pid is not None
            assert held.api_key not in Path(f"/proc/{held.engine_pid}/cmdline").read_text()
            os.kill(held.engine_pid, signal.SIGKILL)
            failed = await reach(one, "failed")
            assert any("server_args" in line for line in failed.output_tail)
            assert not any(held.api_key in line for line in failed.output_tail)

    run(test)
