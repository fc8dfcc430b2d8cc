"""The node's own corners: the lock, offers, ports and the inventory's patience."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llmgw.agent import inventory as inventory_module
from llmgw.agent.inventory import InventoryReader
from llmgw.agent.main import AgentError, lock_work_dir, run_agent
from llmgw.agent.only_one import claim_node
from llmgw.agent.ports import NoFreePort, PortsWanted, choose_ports, count_free
from llmgw.agent.processes import Exit
from llmgw.engines.offers import engine_offers
from llmgw.messages.agent import Gpu, Inventory
from tests.agent.fakes import ProgramAdapter, make_config
from tests.ports import free_port


def test_a_second_agent_on_the_same_work_dir_refuses_with_a_sentence(tmp_path: Path) -> None:
    lock = lock_work_dir(str(tmp_path))
    with pytest.raises(AgentError) as refused:
        run_agent(make_config(tmp_path))
    assert f"another agent (pid {os.getpid()}) works in {tmp_path}" in str(refused.value)
    os.close(lock)
    os.close(lock_work_dir(str(tmp_path)))


def test_a_work_dir_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentError, match=r"set supervisor\.work_dir"):
        lock_work_dir(str(tmp_path / "file" / "work"))


def test_an_engine_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = lock_work_dir(str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    os.close(lock)
    os.close(lock_work_dir(str(tmp_path)))
    child.communicate(b"\n")


def test_an_engine_whose_program_cannot_run_is_offered_with_the_problem(tmp_path: Path) -> None:
    class Pointing(ProgramAdapter):
        def __init__(self, program: str) -> None:
            self.at = program

        def program(self, config: object) -> str:
            return self.at

    plain = tmp_path / "plain"
    plain.write_text("")
    adapters = [
        Pointing(sys.executable),
        Pointing("no-such-program-anywhere"),
        Pointing("/nonexistent/vllm"),
        Pointing(str(tmp_path)),
        Pointing(str(plain)),
    ]
    problems = [offer.problem for offer in engine_offers(adapters, make_config(tmp_path))]
    assert problems[0] is None
    for problem, words in zip(
        problems[1:], ["on PATH", "does not exist", "is a folder", "not executable"], strict=True
    ):
        assert problem is not None
        assert words in problem
        assert os.geteuid() == 0 or "check engines.program in agent.yaml" in problem


def test_ports_of_shards_that_ended_lately_are_chosen_last() -> None:
    low = free_port()
    ports = range(low, low + 30)
    one = PortsWanted(http=True)
    first = choose_ports(one, ports, "127.0.0.1", held=[], recent=[]).http
    assert first is not None
    assert choose_ports(one, ports, "127.0.0.1", held=[first]).http != first
    assert choose_ports(one, ports, "127.0.0.1", held=[], recent=[first]).http != first
    with pytest.raises(NoFreePort, match="31 free ports are needed"):
        choose_ports(PortsWanted(extra=31), ports, "127.0.0.1", held=[])


def test_ports_that_engines_bind_on_every_address_are_free_on_every_address() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.7", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        ports = range(taken, taken + 1)
        assert choose_ports(PortsWanted(http=True), ports, "127.0.0.1", held=[]).http == taken
        with pytest.raises(NoFreePort):
            choose_ports(PortsWanted(rendezvous=True), ports, "127.0.0.1", held=[])
        with pytest.raises(NoFreePort):
            choose_ports(PortsWanted(extra=1), ports, "127.0.0.1", held=[])


def test_free_ports_are_counted_without_those_that_shards_hold_or_somebody_listens_at() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        taken = listener.getsockname()[1]
        assert count_free(range(taken, taken + 1), "127.0.0.1", held=[]) == 0
    assert count_free(range(taken, taken + 1), "127.0.0.1", held=[]) == 1
    assert count_free(range(taken, taken + 1), "127.0.0.1", held=[taken]) == 0
    assert count_free(range(taken, taken + 1), "192.0.2.1", held=[]) is None


def test_an_inventory_that_hangs_delays_no_heartbeat_and_is_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inventory_module, "PATIENCE_S", 0.1)
    release = threading.Event()
    readings: list[int] = []

    def read() -> Inventory:
        readings.append(1)
        if len(readings) == 2:
            assert release.wait(20)
        if len(readings) == 3:
            raise RuntimeError("the driver is gone")
        return Inventory(gpus=[Gpu(index=0, uuid=f"GPU-{len(readings)}", name="x")])

    async def test() -> None:
        reader = InventoryReader(read, node_id="node01")
        assert (await reader.fresh()).findings == []
        for _ in range(3):
            slow = await reader.fresh()
            assert slow.gpus[0].uuid == "GPU-1"
            assert [finding.check for finding in slow.findings] == ["inventory-slow"]
        assert len(readings) == 2
        release.set()
        while (fresh := await reader.fresh()).findings:
            pass
        assert fresh.gpus[0].uuid == "GPU-2"
        failed = await reader.fresh()
        assert [finding.check for finding in failed.findings] == ["inventory-unreadable"]
        assert (await reader.fresh()).gpus[0].uuid == "GPU-4"

    asyncio.run(test())


def test_an_exit_is_told_in_words() -> None:
    assert Exit("engine", 1).sentence() == "engine exited with code 1"
    assert Exit("engine", -9).sentence() == "engine was killed by SIGKILL"
    assert "unknown" in Exit("engine", None).sentence()


def test_a_full_disk_does_not_keep_an_agent_from_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    os.close(lock_work_dir(str(tmp_path)))


def test_a_second_agent_of_the_node_with_another_work_dir_refuses_with_a_sentence(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    claim = claim_node(config.node_id, config.server, os.geteuid())
    assert not isinstance(claim, int)
    assert claim is not None
    with claim:
        assert claim_node(config.node_id, config.server, os.geteuid() + 1) is None, "another user's claim is none"
        with pytest.raises(AgentError, match=rf"an agent of {config.node_id} \(pid {os.getpid()}\) runs"):
            run_agent(config)


def test_whoever_asks_while_the_node_is_read_gets_the_same_reading() -> None:
    readings: list[int] = []

    def read() -> Inventory:
        readings.append(1)
        return Inventory()

    async def test() -> None:
        reader = InventoryReader(read, node_id="node01")
        one, other = await asyncio.gather(reader.fresh(), reader.fresh())
        assert one == other == Inventory()
        assert len(readings) == 1

    asyncio.run(test())
