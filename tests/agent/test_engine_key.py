"""An engine's own key: made by the agent, demanded by the engine, kept for its life, and shown to nobody."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import msgspec
import pytest

from llmgw.messages.agent import HeldShard, Rendezvous
from tests.agent.fakes import make_spec
from tests.agent.test_adoption import agent_killed_when, read_record, work_dir  # noqa: F401
from tests.agent.test_supervisor import Running, run, running
from tests.agent.waiting import wait_until


def key_of(shard: HeldShard) -> str:
    assert shard.api_key is not None
    return shard.api_key


async def status_without(node: Running, shard: HeldShard, key: str | None) -> int:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"http://127.0.0.1:{shard.http_port}/v1/completions", headers=headers)
    return answer.status_code


def test_an_engine_demands_a_key_that_only_its_agent_and_the_server_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys: list[str] = []

    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec())
            ready = await node.reach("ready")  # the agent's own one-token request carried the key
            key = key_of(ready)
            keys.append(key)
            assert len(key) >= 40
            folder = tmp_path / "shards" / "r1-0"
            environment = json.loads((folder / "run" / "environment.json").read_text())
            assert environment["PROGRAM_API_KEY"] == key
            assert (folder / "shard.json").stat().st_mode & 0o777 == 0o600
            assert await status_without(node, ready, None) == 401
            assert await status_without(node, ready, "another-key-of-some-length") == 401
            assert await status_without(node, ready, key) == 200
            assert key not in repr(ready)
            assert "[hidden]" in repr(ready)
            assert key not in repr(read_record(tmp_path))
            assert key in msgspec.json.encode(ready).decode()
            assert key not in (folder / "engine.log").read_text()

            await node.supervisor.start(make_spec("r2-0"))
            other = await node.reach("ready", "r2-0")
            assert key_of(other) != key
            await node.supervisor.stop("r1-0", "enough")
            assert (await node.reach("stopped")).api_key is None

    run(test)
    said = capsys.readouterr()
    assert "shard=r1-0" in said.out + said.err
    assert keys[0] not in said.out + said.err


def test_a_worker_serves_nothing_and_has_no_key(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            leader = Rendezvous(host="127.0.0.1", port=1)
            await node.supervisor.start(make_spec(nodes=2, rank=1, rendezvous=leader, fabric="ib-a"))
            [held] = await node.supervisor.held()
            assert held.api_key is None

    run(test)


def test_an_adopted_engine_keeps_its_key(work_dir: Path) -> None:  # noqa: F811
    agent_killed_when(work_dir, "ready")
    before = read_record(work_dir).api_key

    async def test() -> None:
        async with running(work_dir) as node:
            [adopted] = await node.supervisor.held()
            assert key_of(adopted) == before
            assert await status_without(node, adopted, before) == 200
            await node.supervisor.stop("r1-0", "enough")
            await node.reach("stopped")

    run(test)


def test_ports_that_an_engine_wants_beside_its_own_are_given_reported_and_kept(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            leader = Rendezvous(host="127.0.0.1", port=1)
            worker = make_spec("r1-1", "extra-ports=3", nodes=2, rank=1, rendezvous=leader, fabric="ib-a")
            await node.supervisor.start(worker)
            [held] = await node.supervisor.held()
            assert (held.http_port, held.rendezvous_port, len(held.extra_ports)) == (None, None, 3)
            await node.supervisor.start(make_spec("r2-0", "extra-ports=2"))
            other = next(one for one in await node.supervisor.held() if one.spec.shard_id == "r2-0")
            assert len({*held.extra_ports, *other.extra_ports, other.http_port}) == 6
            assert node.supervisor.ports_held() == {*held.extra_ports, *other.extra_ports, other.http_port}
            path = tmp_path / "shards" / "r1-1" / "shard.json"
            wait_until(path.exists, "its description is on disk")
            assert json.loads(path.read_text())["extra_ports"] == held.extra_ports

    run(test)
