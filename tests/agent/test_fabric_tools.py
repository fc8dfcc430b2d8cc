"""Asking a fabric through a real agent process, with small programs in the place of infiniband-diags."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.fabric_tools import FabricTools
from llmgw.config.agent import AgentConfig, Discovery
from llmgw.messages.fabric import FABRIC_TEXT_BYTES_MAX, FABRIC_ZLIB_BYTES_MAX, AskFabric, FabricText
from llmgw.sim.hardware import SimulatedHardware, set_port, write_hardware
from tests.agent.test_front_door import Site, end
from tests.agent.test_supervisor import alive
from tests.agent.waiting import until
from tests.hardware.nodes import write_program

MAP = 'vendid=0x2c9\nSwitch\t41 "S-98039b0300a1b2c0"\t\t# "leaf0" enhanced port 0 lid 3 lmc 0\n'
# What infiniband-diags 44 says where it may not open /dev/infiniband/umad0.
SHUT = (
    "ibwarn: [29331] mad_rpc_open_port: can't open UMAD port (mlx5_0:1)\n"
    "./libibnetdisc/ibnetdisc.c:802; can't open MAD port (mlx5_0:1)\n"
    "ibnetdiscover: iberror: failed: discover failed\n"
)


class Fabric:
    """One node's site with two adapters, and the programs that its agent asks."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder)
        self.hardware = write_hardware(folder / "hw", adapters=2, node="node01")
        self.map_tool = write_program(folder / "ibnetdiscover", f"echo \"$@\" > {folder}/asked\nprintf '{MAP}'")
        self.managers_tool = write_program(folder / "saquery", 'echo "$@"')
        self.folder = folder

    def config(self, port: int) -> Path:
        return self.site.write_config(
            port,
            discovery={
                "nvidia_smi": "/nonexistent/nvidia-smi",
                "ib_root": str(self.hardware.ib_root),
                "ibnetdiscover": str(self.map_tool),
                "saquery": str(self.managers_tool),
            },
            fabrics=[{"name": "ib-a", "hcas": ["mlx5_0", "mlx5_1"]}],
        )

    def ask(self, what: Any, adapter: str = "mlx5_0", port: int = 1) -> str:
        request_id = f"q{len(self.site.commands) + 1}"
        seq = len(self.site.commands) + 1
        self.site.commands.append(
            AskFabric(seq=seq, request_id=request_id, what=what, adapter=adapter, port=port)
        )
        return request_id

    def told(self) -> dict[str, FabricText]:
        return {text.request_id: text for report in self.site.reports for text in report.fabrics}

    async def answer(self, request_id: str, deadline_s: float = 20) -> FabricText:
        await until(lambda: request_id in self.told(), f"{request_id} is answered", deadline_s)
        return self.told()[request_id]


def with_agent(folder: Path, test: Callable[[Fabric, subprocess.Popen[bytes]], Awaitable[None]]) -> None:
    """Run the test against an agent that has registered; the agent is ended after it."""

    async def run() -> None:
        fabric = Fabric(folder)
        async with fabric.site.serving() as port:
            agent = fabric.site.start_agent(fabric.config(port))
            try:
                await until(lambda: fabric.site.registers, "the agent registers")
                await test(fabric, agent)
            finally:
                if agent.poll() is None:
                    await asyncio.to_thread(end, agent, signal.SIGTERM)
                elif agent.stderr is not None:
                    agent.stderr.close()

    asyncio.run(run())


def pid_in(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def test_a_map_and_the_managers_come_in_the_tools_own_words(tmp_path: Path) -> None:
    async def test(fabric: Fabric, agent: subprocess.Popen[bytes]) -> None:
        assert "fabric_tools" in fabric.site.registers[0].features
        told = await fabric.answer(fabric.ask("map", "mlx5_1"))
        assert (told.error, told.exit_code, told.cut, told.complaints) == (None, 0, False, "")
        assert zlib.decompress(told.output).decode() == MAP
        assert told.took_s > 0
        assert (tmp_path / "asked").read_text() == "-C mlx5_1 -P 1\n"
        told = await fabric.answer(fabric.ask("managers"))
        assert zlib.decompress(told.output) == b"-C mlx5_0 -P 1 SMIR\n"
        assert all(len(report.fabrics) <= 1 for report in fabric.site.reports)

    with_agent(tmp_path, test)


def test_what_a_node_cannot_ask_is_told_in_a_sentence_each(tmp_path: Path) -> None:
    async def test(fabric: Fabric, agent: subprocess.Popen[bytes]) -> None:
        gone = (await fabric.answer(fabric.ask("map", "mlx5_7"))).error or ""
        assert gone.startswith("node01: adapter mlx5_7 is not there (this node has mlx5_0, mlx5_1)")
        assert "mlx5_0 has no port 2 (it has 1)" in ((await fabric.answer(fabric.ask("map", port=2))).error or "")
        fabric.map_tool.chmod(0o644)
        assert "chmod a+rx" in ((await fabric.answer(fabric.ask("map"))).error or "")
        fabric.map_tool.unlink()
        missing = (await fabric.answer(fabric.ask("map"))).error or ""
        assert f"{fabric.map_tool} does not exist" in missing
        assert "apt-get install infiniband-diags" in missing
        write_program(fabric.map_tool, f'cat >&2 <<"END"\n{SHUT}END\nexit 255')
        shut = await fabric.answer(fabric.ask("map"))
        assert "cannot open the management device of mlx5_0 port 1" in (shut.error or "")
        assert "/dev/infiniband/umad*" in (shut.error or "")
        assert (shut.exit_code, shut.complaints) == (255, SHUT)

    with_agent(tmp_path, test)


def test_what_a_tool_says_when_it_fails_is_the_readers_to_judge(tmp_path: Path) -> None:
    async def test(fabric: Fabric, agent: subprocess.Popen[bytes]) -> None:
        write_program(fabric.managers_tool, 'echo "Query SA failed: Connection timed out" >&2; exit 255')
        told = await fabric.answer(fabric.ask("managers"))
        assert (told.error, told.exit_code) == (None, 255)
        assert told.complaints == "Query SA failed: Connection timed out\n"

    with_agent(tmp_path, test)


def test_seventy_megabytes_are_cut_at_the_bound_and_still_arrive(tmp_path: Path) -> None:
    async def test(fabric: Fabric, agent: subprocess.Popen[bytes]) -> None:
        write_program(fabric.map_tool, "yes '[1] \"S-98039b0300a1b2c0\"[1]' | head -c 70000000")
        told = await fabric.answer(fabric.ask("map"), 60)
        assert (told.error, told.cut) == (None, True)
        assert len(zlib.decompress(told.output)) == FABRIC_TEXT_BYTES_MAX
        assert alive(agent.pid)

    with_agent(tmp_path, test)


def test_what_does_not_fit_a_report_is_told_and_not_sent(tmp_path: Path) -> None:
    async def test(fabric: Fabric, agent: subprocess.Popen[bytes]) -> None:
        size = FABRIC_ZLIB_BYTES_MAX + 1_000_000
        write_program(fabric.map_tool, f"head -c {size} /dev/urandom")
        told = await fabric.answer(fabric.ask("map"), 60)
        assert told.output == b""
        assert "printed 11.5 MB" in (told.error or "")
        assert "run it by hand" in (told.error or "")

    with_agent(tmp_path, test)


def test_one_map_at_a_time_and_none_is_waited_for_by_the_poll_or_left_by_the_agent(tmp_path: Path) -> None:
    async def test(fabric: Fabric, agent: subprocess.Popen[bytes]) -> None:
        pid_file = tmp_path / "pid"
        write_program(fabric.map_tool, f"echo $$ > {pid_file}; exec sleep 600")
        fabric.ask("map")
        await until(lambda: pid_in(pid_file), "the tool runs")
        second = await fabric.answer(fabric.ask("map"))
        assert "ask again in a minute" in (second.error or "")
        managers = await fabric.answer(fabric.ask("managers"))
        assert managers.error is None
        tool = pid_in(pid_file)
        assert tool is not None
        assert alive(tool)
        assert await asyncio.to_thread(end, agent, signal.SIGTERM) == 0
        await until(lambda: not alive(tool), "the tool has ended")

    with_agent(tmp_path, test)


def test_a_killed_agent_and_an_ended_session_leave_no_tool_behind(tmp_path: Path) -> None:
    async def test(fabric: Fabric, agent: subprocess.Popen[bytes]) -> None:
        pid_file = tmp_path / "pid"
        write_program(fabric.map_tool, f"echo $$ > {pid_file}; exec sleep 600")
        fabric.ask("map")
        await until(lambda: pid_in(pid_file), "the tool runs")
        first = pid_in(pid_file)
        assert first is not None
        # A server that has forgotten the session: the agent registers again, and asks no more for the old one.
        fabric.site.commands.clear()
        fabric.site.registers.append(fabric.site.registers[0])
        await until(lambda: len(fabric.site.registers) > 2, "the agent registers again")
        await until(lambda: not alive(first), "the tool of the old session has ended")
        fabric.ask("map")
        await until(lambda: pid_in(pid_file) not in (None, first), "the tool runs again")
        second = pid_in(pid_file)
        assert second is not None
        assert await asyncio.to_thread(end, agent, signal.SIGKILL) == -9
        await until(lambda: not alive(second), "the tool has ended with its agent")

    with_agent(tmp_path, test)


def tools(folder: Path, hardware: SimulatedHardware, body: str, **limits: Any) -> FabricTools:
    tool = write_program(folder / "tool", body)
    discovery = Discovery(ib_root=str(hardware.ib_root), ibnetdiscover=str(tool), saquery=str(tool))
    config = AgentConfig(node_id="node01", server="https://127.0.0.1:1", discovery=discovery)
    return FabricTools(config, **limits)


def asked(question: FabricTools, what: Any = "map") -> FabricText:
    ask = AskFabric(seq=1, request_id="q", what=what, adapter="mlx5_0", port=1)

    async def run() -> FabricText:
        return await question(ask)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("what", "command"), [("map", "tool -C mlx5_0 -P 1"), ("managers", "tool -C mlx5_0 -P 1 SMIR")]
)
def test_a_tool_that_hangs_is_killed_at_its_limit_and_told(tmp_path: Path, what: str, command: str) -> None:
    hardware = write_hardware(tmp_path / "hw", adapters=1)
    pid_file = tmp_path / "pid"
    question = tools(
        tmp_path, hardware, f"echo $$ > {pid_file}; exec sleep 600", map_limit_s=1.5, managers_limit_s=1.5
    )
    told = asked(question, what)
    assert f"{command}` had not ended after 1.5 s and was killed" in (told.error or "")
    tool = pid_in(pid_file)
    assert tool is not None
    assert not alive(tool)


def test_an_ethernet_port_is_not_asked(tmp_path: Path) -> None:
    hardware = write_hardware(tmp_path / "hw", adapters=1, link_layer="Ethernet")
    told = asked(tools(tmp_path, hardware, f"touch {tmp_path}/ran"))
    assert "mlx5_0 port 1 is an Ethernet port" in (told.error or "")
    assert not (tmp_path / "ran").exists()


def test_a_device_that_is_not_there_is_told_before_a_tool_mistakes_it_for_no_manager(tmp_path: Path) -> None:
    hardware = write_hardware(tmp_path / "hw", adapters=1)
    device = hardware.directory / "sys" / "class" / "infiniband_mad" / "umad0"
    device.mkdir(parents=True)
    (device / "ibdev").write_text("mlx5_0\n")
    (device / "port").write_text("1\n")
    told = asked(tools(tmp_path, hardware, "exit 0"), "managers")
    assert "there is no /dev/infiniband/umad0" in (told.error or "")


def test_a_program_of_another_kind_is_told(tmp_path: Path) -> None:
    hardware = write_hardware(tmp_path / "hw", adapters=1)
    question = tools(tmp_path, hardware, "exit 0")
    (tmp_path / "tool").write_bytes(b"\x7fELF" + bytes(60))
    told = asked(question)
    assert "correct discovery.ibnetdiscover in agent.yaml" in (told.error or "")


def test_a_fabric_that_is_lost_and_comes_back_is_said_once_with_its_reason(tmp_path: Path) -> None:
    """In the agent's own log."""

    async def test(fabric: Fabric, agent: subprocess.Popen[bytes]) -> None:
        said: list[str] = []
        stderr = agent.stderr
        assert stderr is not None
        reader = threading.Thread(target=lambda: said.extend(line.decode() for line in stderr), daemon=True)
        reader.start()

        def usable() -> bool | None:
            inventories = [report.inventory for report in fabric.site.reports if report.inventory is not None]
            return inventories[-1].fabrics[0].usable if inventories else None

        await until(lambda: usable() is True, "the fabric is offered")
        set_port(fabric.hardware.directory, "mlx5_1", "init")
        await until(lambda: usable() is False, "the fabric is withdrawn")
        beats = len(fabric.site.reports)
        await until(lambda: len(fabric.site.reports) > beats + 3, "some more heartbeats")
        set_port(fabric.hardware.directory, "mlx5_1", "active")
        await until(lambda: usable() is True, "the fabric is back")
        await asyncio.to_thread(end, agent, signal.SIGTERM)
        await asyncio.to_thread(reader.join, 10)
        lost = [line for line in said if "fabric lost" in line]
        assert len(lost) == 1
        assert "mlx5_1 port 1 is up, but no subnet manager" in lost[0]
        assert "ib-a" in lost[0]
        assert len([line for line in said if "fabric back" in line]) == 1

    with_agent(tmp_path, test)
