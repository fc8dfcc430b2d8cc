"""The ends of a bandwidth test on an agent, with a program that speaks perftest's command line."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmgw.agent.fabric_test import ends
from llmgw.agent.fabric_test.command_line import BandwidthError, EndSettings, command_line
from llmgw.agent.fabric_test.ends import BandwidthEnds
from llmgw.agent.fabric_test.escaped import END_MARKER, marker
from llmgw.agent.fabric_test.install import MANAGERS, have_program
from llmgw.config.agent import AgentConfig
from llmgw.fabric.perftest import read_bandwidth
from llmgw.messages.fabric_test import (
    BandwidthAnswer,
    BandwidthPort,
    EndBandwidth,
    MeasureBandwidth,
    PrepareBandwidth,
    ServeBandwidth,
)
from llmgw.sim.hardware import set_port, write_hardware
from tests.agent.waiting import until
from tests.perftest import Perftest


class Node:
    """A node with simulated adapters and a perftest of its own."""

    def __init__(self, folder: Path, address: str = "127.0.0.1", link_layer: str = "InfiniBand") -> None:
        hardware = write_hardware(folder / "hardware", adapters=2, node=folder.name, link_layer=link_layer)
        self.hardware = hardware.directory
        self.perftest = Perftest(folder / "perftest", hardware.ib_root)
        discovery = {"ib_write_bw": str(self.perftest.path), "ib_root": str(hardware.ib_root)}
        self.config = AgentConfig.model_validate({"server": "https://x", "discovery": discovery})
        self.ends = BandwidthEnds(
            self.config,
            address,
            ports_held=lambda: {21999},
            root=False,
            env=dict(os.environ),
            work_dir=str(folder),
        )

    async def serve(self, end: str = "s", adapter: str = "mlx5_0", seconds: int = 1) -> BandwidthAnswer:
        return await self.ends.answer(
            ServeBandwidth(seq=1, request_id="r", end=end, adapter=adapter, port=1, seconds=seconds)
        )

    async def measure(
        self, tcp_port: int, end: str = "c", adapter: str = "mlx5_0", host: str = "127.0.0.1"
    ) -> BandwidthAnswer:
        return await self.ends.answer(
            MeasureBandwidth(
                seq=2,
                request_id="r",
                end=end,
                adapter=adapter,
                port=1,
                seconds=1,
                host=host,
                tcp_port=tcp_port,
            )
        )

    async def end(self, end: str) -> BandwidthAnswer:
        return await self.ends.answer(EndBandwidth(seq=3, request_id="r", end=end))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    pair = Node(tmp_path / "a"), Node(tmp_path / "b")
    yield pair
    assert not [pid for node in pair for pid in node.perftest.running()], "ends were left behind"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def test_two_ends_meet_and_the_client_has_the_result(nodes: tuple[Node, Node]) -> None:
    async def body() -> None:
        client, server = nodes
        serving = await server.serve()
        assert serving.error is None
        # Not the one that a shard holds, and the range's end before its beginning.
        assert serving.tcp_port is not None
        assert 21900 < serving.tcp_port < 21999
        told = await client.measure(serving.tcp_port)
        assert (told.exit_code, told.error) == (0, None)
        assert (read_bandwidth(told.output).gbps, read_bandwidth(told.output).message_bytes) == (390.0, 8388608)
        ended = await server.end("s")
        assert (ended.exit_code, ended.error) == (0, None)

    run(body())


def test_roce_names_its_gid_index(tmp_path: Path) -> None:
    async def body() -> None:
        client, server = (Node(tmp_path / name, link_layer="Ethernet") for name in "ab")
        serving = await server.serve()
        assert serving.tcp_port is not None
        told = await client.measure(serving.tcp_port)
        assert read_bandwidth(told.output).gbps == 390.0
        for node in (client, server):
            [call] = node.perftest.calls()
            assert call[call.index("-x") + 1] == "3"
        await server.end("s")
        set_port(server.hardware, "mlx5_0", "unaddressed")
        refused = await server.serve("s2")
        assert "mlx5_0 port 1 has no RoCE v2 GID with an address that others reach" in (refused.error or "")

    run(body())


def test_ends_meet_over_ipv6_too(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")

    async def body() -> None:
        client, server = Node(tmp_path / "a", "::1"), Node(tmp_path / "b", "::1")
        serving = await server.serve()
        assert serving.tcp_port is not None
        told = await client.measure(serving.tcp_port, host="::1")
        assert read_bandwidth(told.output).gbps == 390.0
        await server.end("s")

    run(body())


def test_an_end_that_is_ended_is_gone_when_that_is_answered(nodes: tuple[Node, Node]) -> None:
    async def body() -> None:
        client, server = nodes
        client.perftest.faults(any={"client": "hang"})
        serving = await server.serve()
        assert serving.tcp_port is not None
        measuring = asyncio.ensure_future(client.measure(serving.tcp_port))
        await until(lambda: client.perftest.running(), "the end runs")
        ended = await client.end("c")
        assert not client.perftest.running()
        assert ended.error == "the test was ended"
        assert (await measuring).error == "the test was ended"
        await server.end("s")
        assert not server.perftest.running()
        assert (await server.end("never heard of")).error is None

    run(body())


def test_an_end_that_hangs_is_killed_when_its_time_is_over(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "MEASURE_MARGIN_S", 0.5)
    monkeypatch.setattr(ends, "SERVE_MARGIN_S", 2.0)

    async def body() -> None:
        client, server = nodes
        client.perftest.faults(any={"client": "hang"})
        serving = await server.serve()
        assert serving.tcp_port is not None
        told = await client.measure(serving.tcp_port)
        assert told.error == "ib_write_bw had not ended after 2 s and was killed"
        assert not client.perftest.running()
        # The server end goes without being told to, whatever becomes of the control plane.
        await until(lambda: not server.perftest.running(), "the end is gone")

    run(body())


def test_a_server_end_that_never_listens_is_ended(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "LISTEN_LIMIT_S", 0.5)

    async def body() -> None:
        nodes[1].perftest.faults(any={"server": "hang before"})
        serving = await nodes[1].serve()
        assert serving.tcp_port is None
        assert "did not listen on port" in (serving.error or "")

    run(body())


def wrapped(node: Node) -> None:
    """Make the node's program one that a wrapper starts in a session of its own, and does not wait for."""
    path = node.perftest.path
    real = path.rename(path.with_name("ib_write_bw.real"))
    path.write_text(f'#!/bin/sh\nsetsid {real} "$@" &\nsleep 60\n')
    path.chmod(0o755)


def living(node: Node) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "status"])
        if f"{node.perftest.path}.real" in (process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def test_what_left_the_programs_own_session_is_ended_with_it(nodes: tuple[Node, Node]) -> None:
    async def body() -> None:
        node, other = nodes
        for one in nodes:
            wrapped(one)
        assert (await node.serve()).tcp_port is not None
        assert (await other.serve()).tcp_port is not None
        assert living(node)
        await node.end("s")
        assert not living(node)
        # Another agent's end has the same id, and goes on.
        assert living(other)
        await other.end("s")
        assert not living(other)

    run(body())


def test_what_a_killed_agent_left_is_ended_by_the_next_one(nodes: tuple[Node, Node]) -> None:
    async def body() -> None:
        node, other = nodes
        left = []
        for one in nodes:
            of_agent = marker(str(one.perftest.folder.parent), "t-1-1-s")
            left.append(
                await asyncio.create_subprocess_exec(
                    "sleep", "60", env={**os.environ, END_MARKER: of_agent}, start_new_session=True
                )
            )
        try:
            await node.ends.begin()
            assert await left[0].wait() == -signal.SIGKILL
            assert left[1].returncode is None
        finally:
            await other.ends.begin()
            await left[1].wait()

    run(body())


def test_an_end_that_prints_too_much_is_told_as_that(nodes: tuple[Node, Node]) -> None:
    async def body() -> None:
        node, _ = nodes
        node.perftest.path.write_text("#!/bin/sh\nexec yes\n")
        told = await node.serve()
        assert told.exit_code is None
        assert (told.error or "").endswith("printed more than a test's result; run it by hand to see what")

    run(body())


def test_a_port_that_somebody_else_takes_first_costs_one_more_try(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        numbers = iter([taken.getsockname()[1]])
        free = BandwidthEnds._free_port
        monkeypatch.setattr(
            BandwidthEnds, "_free_port", lambda self, held: next(numbers, None) or free(self, held)
        )

        async def body() -> None:
            serving = await nodes[1].serve()
            assert serving.tcp_port not in (None, taken.getsockname()[1])
            assert len(nodes[1].perftest.calls()) == 2
            await nodes[1].end("s")

        run(body())


def test_an_adapter_is_tested_once_at_a_time(nodes: tuple[Node, Node]) -> None:
    async def body() -> None:
        node = nodes[0]
        assert (await node.serve("one")).tcp_port is not None
        second = await node.serve("two")
        assert second.error == "mlx5_0 is being tested already; try again when that test is over"
        assert (await node.serve("one", "mlx5_1")).error == "the test's end one was started here already"
        other = await node.serve("three", "mlx5_1")
        assert other.tcp_port is not None
        await node.ends.close()
        assert not node.perftest.running()
        assert (await node.serve("two")).tcp_port is not None
        await node.end("two")

    run(body())


def test_what_is_wrong_with_a_port_is_said_before_anything_runs(nodes: tuple[Node, Node]) -> None:
    async def body() -> None:
        node = nodes[0]
        set_port(node.hardware, "mlx5_1", "down")
        assert "mlx5_1 port 1 is not up" in ((await node.serve("a", "mlx5_1")).error or "")
        missing = (await node.serve("b", "mlx5_7")).error or ""
        assert missing.startswith("there is no adapter mlx5_7 (the adapters are mlx5_0, mlx5_1)")
        assert not node.perftest.calls()

    run(body())


def test_a_program_that_refuses_tells_its_own_words(nodes: tuple[Node, Node]) -> None:
    async def body() -> None:
        told = await nodes[0].measure(1)
        assert told.exit_code == 1
        words = read_bandwidth(told.output).error or ""
        assert words.startswith("Couldn't connect to 127.0.0.1:1; Unable to open file descriptor")

    run(body())


def test_ends_that_are_told_different_things_do_not_meet(nodes: tuple[Node, Node]) -> None:
    async def body() -> None:
        serving = await nodes[1].serve(seconds=7)
        assert serving.tcp_port is not None
        told = await nodes[0].measure(serving.tcp_port)
        words = read_bandwidth(told.output).error or ""
        assert "Failed to exchange data between server and clients" in words
        await nodes[1].end("s")

    run(body())


def test_the_pcie_slots_are_told_beforehand(nodes: tuple[Node, Node]) -> None:
    async def body() -> None:
        device = Path(nodes[0].config.discovery.ib_root) / "mlx5_1" / "device"
        (device / "current_link_width").write_text("4\n")
        ports = [BandwidthPort(adapter=f"mlx5_{at}", port=1) for at in range(2)]
        told = await nodes[0].ends.answer(PrepareBandwidth(seq=1, request_id="r", ports=ports))
        assert (told.error, told.pcie_gbps) == (None, {"mlx5_0": 504.1, "mlx5_1": 126.0})
        (device / "current_link_speed").write_text("Unknown\n")
        told = await nodes[0].ends.answer(PrepareBandwidth(seq=1, request_id="r", ports=ports))
        assert told.pcie_gbps == {"mlx5_0": 504.1}

    run(body())


def test_a_program_ends_with_the_agent_that_started_it(tmp_path: Path) -> None:
    """The agent is killed: nothing but the kernel can end its program then."""
    node = Node(tmp_path / "a")
    script = (
        "import asyncio, os; from pathlib import Path\n"
        "from tests.agent.test_bandwidth_ends import Node\n"
        f"node = Node(Path({str(tmp_path)!r}) / 'a')\n"
        "async def main():\n"
        "    assert (await node.serve()).tcp_port\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )

    async def body() -> None:
        done = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
        assert await done.wait() == -9
        assert len(node.perftest.calls()) == 1
        await until(lambda: not node.perftest.running(), "the end is gone")

    run(body())


def test_the_command_lines_hold_only_what_perftests_manual_has() -> None:
    settings: dict[str, Any] = {"adapter": "mlx5_0", "port": 1, "tcp_port": 20000, "seconds": 5}
    server = command_line("ib_write_bw", EndSettings(gid_index=None, **settings))
    assert " ".join(server) == "ib_write_bw -d mlx5_0 -i 1 -p 20000 -s 8388608 -D 5 -F --report_gbits"
    client = command_line("ib_write_bw", EndSettings(gid_index=3, host="fd00::2", ipv6=True, **settings))
    assert client == [*server, "-x", "3", "--ipv6-addr", "fd00::2"]


class Packages:
    """Folders of programs that stand for a distribution."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.env = {"PATH": f"{folder}:/usr/bin:/bin"}

    def program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "$0 $*" | sed "s|.*/||" >> {self.folder}/calls\n{text}\n')
        path.chmod(0o755)

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def have(self, program: str = "ib_write_bw_x", **how: Any) -> tuple[str, bool]:
        return have_program(program, **{"install": True, "root": True, "env": self.env, **how})


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    found = Packages(tmp_path / "bin")
    # Whatever this machine's own package manager is, it has no part in this.
    found.env["PATH"] = f"{found.folder}:{tmp_path / 'tools'}"
    (tmp_path / "tools").mkdir()
    for tool in ("sed", "cp", "chmod", "sh", "cat"):
        where = next(path for path in (Path("/bin") / tool, Path("/usr/bin") / tool) if path.exists())
        (tmp_path / "tools" / tool).symlink_to(where)
    return found


def installs(packages: Packages) -> str:
    return f"printf '#!/bin/sh\\n' > {packages.folder}/ib_write_bw_x; chmod +x {packages.folder}/ib_write_bw_x"


def test_perftest_is_installed_with_the_distributions_package_manager(packages: Packages) -> None:
    packages.program("apt-get", installs(packages))
    path, installed = packages.have()
    assert (path, installed) == (str(packages.folder / "ib_write_bw_x"), True)
    assert packages.calls() == [f"apt-get {' '.join(MANAGERS[0].install)}"]
    assert packages.have() == (path, False)
    assert len(packages.calls()) == 1


@pytest.mark.parametrize(("name", "words"), [("dnf", "-y install perftest"), ("zypper", "install")])
def test_other_distributions_have_other_package_managers(packages: Packages, name: str, words: str) -> None:
    packages.program(name, installs(packages))
    assert packages.have()[1]
    assert words in packages.calls()[0]


def test_an_old_list_of_packages_is_refreshed_and_the_installation_tried_again(packages: Packages) -> None:
    updated = packages.folder / "updated"
    packages.program(
        "apt-get",
        f'case "$*" in *update) : > {updated};; *) [ -e {updated} ] || '
        f'{{ echo "E: Unable to locate package perftest" >&2; exit 100; }}; {installs(packages)};; esac',
    )
    assert packages.have()[1]
    assert [call.split()[-1] for call in packages.calls()] == ["perftest", "update", "perftest"]


def test_what_cannot_be_installed_is_a_sentence(packages: Packages) -> None:
    def refused(**how: Any) -> str:
        with pytest.raises(BandwidthError) as error:
            packages.have(**how)
        return str(error.value)

    assert "there is no package manager that llmgw knows (apt-get, dnf, zypper)" in refused()
    packages.program("apt-get", 'echo "E: Unable to locate package perftest" >&2; exit 100')
    assert "it exited with 100: E: Unable to locate package perftest" in refused()
    assert "from a file or a mirror" in refused()
    calls = len(packages.calls())
    assert refused(root=False) == (
        "ib_write_bw_x is not installed, and the agent is not root, so it installs nothing; install the package "
        "perftest there (apt-get install perftest)"
    )
    assert "or leave out --no-install" in refused(install=False)
    assert "correct discovery.ib_write_bw" in refused(program="/opt/none/ib_write_bw")
    assert len(packages.calls()) == calls
    packages.program("apt-get", "exit 0")
    assert "installed perftest, and there is still no ib_write_bw_x" in refused()


def test_an_installation_ends_when_it_is_stopped(packages: Packages) -> None:
    packages.program("apt-get", "exec /bin/sleep 60")
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(BandwidthError, match="was stopped"):
        packages.have(stop=stop)


def test_an_installation_that_is_stopped_finishes_the_package_in_its_hand(packages: Packages) -> None:
    begun, done = packages.folder / "begun", packages.folder / "done"
    packages.program(
        "apt-get", f"trap : INT\n: > {begun}\nfor step in 1 2 3 4 5; do /bin/sleep 0.2; done\n: > {done}\nexit 1"
    )
    stop = threading.Event()

    def stop_when_begun() -> None:
        while not begun.exists():
            time.sleep(0.01)
        stop.set()

    stopping = threading.Thread(target=stop_when_begun)
    stopping.start()
    with pytest.raises(BandwidthError, match="was stopped"):
        packages.have(stop=stop)
    stopping.join()
    assert done.exists()
    # What is stopped is not begun again.
    assert len(packages.calls()) == 1
