"""Several routers on one listening socket: each may die, be too many or too old, and no client is refused."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import psutil
import pytest

from llmgw.config.listeners import open_listener
from llmgw.messages.router_files import RouterFiles, worker_name
from llmgw.messages.routes import RouteTable
from llmgw.sim.load import Load
from llmgw.sim.scenarios.judge import Judge
from llmgw.sim.scenarios.server_restart import server_restart
from tests.endtoend.conftest import RunningFleet, until
from tests.endtoend.servers import Server, server
from tests.engines.running import Program, sim_engine
from tests.server.exposition import families, value

T = TypeVar("T")
MODEL = "local"
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(scope="module")
def engine() -> Iterator[Program]:
    with sim_engine("--served-name", MODEL, "--tokens-per-s", "200") as running:
        running.url()
        yield running


@pytest.fixture
def start(tmp_path: Path, engine: Program) -> Callable[..., Any]:
    models = [{"name": MODEL, "endpoints": [{"url": engine.url()}]}]
    return lambda workers, **router: server(tmp_path, models=models, router={"workers": workers, **router})


class Clients:
    """Load in a thread of its own, as long as the block lasts; at its end `failed` is complete."""

    def __init__(self, running: Server, clients: int = 8, served: int = 8) -> None:
        """`served`: so many are, before the block begins."""
        self._served = served
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._load = Load(running.api, [MODEL], clients=clients, tokens=8)

    def __enter__(self) -> Clients:
        self._loop.call_soon_threadsafe(self._load.start)
        self.serve(self._served)
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._load.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def serve(self, more: int = 20) -> None:
        """Wait until so many more are served."""
        target = self._load.counts()["served"] + more
        until(lambda: self._load.counts()["served"] >= target, 60)

    @property
    def served(self) -> int:
        return self._load.counts()["served"]

    @property
    def failed(self) -> list[str | None]:
        return [request.outcome for request in self._load.failed]


def pids(running: Server) -> dict[str, int]:
    """Worker → pid of those that the server calls serving or finishing."""
    found = {}
    for line in running.get("server")["routers"]:
        words = line.replace("(", "").replace(")", "").replace(",", "").split()
        found[words[4]] = int(words[1])
    return found


def pids_if_there(running: Server) -> dict[str, int]:
    """The same; none while the server is not there yet."""
    try:
        return pids(running)
    except httpx.TransportError:
        return {}


def serving(running: Server) -> set[int]:
    lines = running.get("server")["routers"]
    return {int(line.split()[1]) for line in lines if "finishing" not in line}


def alive(running: Server) -> set[int]:
    return {process.pid for process in running.routers() if process.status() != psutil.STATUS_ZOMBIE}


def samples(running: Server, name: str) -> dict[str, float]:
    """Router → value, of one metric."""
    text = httpx.get(f"{running.admin}/metrics", trust_env=False).text
    family = families(text)[name.removesuffix("_total")]
    return {sample.labels["router"]: sample.value for sample in family.samples if sample.name == name}


def counted(running: Server) -> float:
    """Requests that were served, of all routers that there are and were."""
    text = httpx.get(f"{running.admin}/metrics", trust_env=False).text
    return value(text, "llmgw_requests_total", model=MODEL, status_class="2xx") or 0.0


def ask_anew(running: Server) -> None:
    """A request over a connection of its own."""
    answer = httpx.get(f"{running.api}/v1/models", trust_env=False, timeout=20)
    assert answer.status_code == 200, answer.text


def test_both_serve_and_one_that_is_killed_costs_only_its_own_requests(start: Callable[..., Any]) -> None:
    with start(2) as running:
        until(lambda: len(serving(running)) == 2)
        before = pids(running)
        assert set(before.values()) == alive(running)
        with Clients(running) as clients:
            until(lambda: all(samples(running, "llmgw_router_requests_total").get(name) for name in before), 30)
            assert all(name in running.ctl("status") for name in before)
        assert clients.failed == []
        until(
            lambda: counted(running) >= clients.served, 20
        )  # both routers' are in one count, and none is missing
        told, all_told = samples(running, "llmgw_router_requests_total"), counted(running)
        assert sum(told.values()) >= all_told
        killed = before["router-0"]
        killed_at = time.monotonic()
        os.kill(killed, signal.SIGKILL)
        while len(new := serving(running) - {killed}) < 2:
            ask_anew(running)  # none is refused, none is cut: it was not connected when its router died
            assert time.monotonic() - killed_at < 20
        assert before["router-1"] in new
        now = samples(running, "llmgw_router_requests_total")
        assert all(now[name] >= told[name] for name in now.keys() & told.keys()), (told, now)
        assert counted(running) >= all_told
        print(f"replaced after {time.monotonic() - killed_at:.2f} s")
        # Under load only what it was answering is lost: a client is cut once at most, and none is refused.
        with Clients(running) as clients:
            os.kill(before["router-1"], signal.SIGKILL)
            clients.serve()
            until(lambda: len(serving(running)) == 2, 20, running.log)
            clients.serve()
        assert len(clients.failed) <= 8
        assert not [outcome for outcome in clients.failed if "Connect" in str(outcome)]


def test_a_server_that_is_killed_takes_both_over_under_load(start: Callable[..., Any]) -> None:
    with start(2) as running:
        until(lambda: len(serving(running)) == 2)
        before = pids(running)
        with Clients(running) as clients:
            running.kill()
            clients.serve()
            running.start_again()
            running.wait_serving()
            until(lambda: pids(running) == before, 20, running.log)
            clients.serve()
        assert clients.failed == []
        assert running.log().count("imported a router's table") == 2
        # It has their sockets: one that dies now is replaced on them, also the last one.
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        ask_anew(running)
        until(lambda: len(serving(running)) == 2, 20, running.log)


def test_a_fleet_behind_two_routers_comes_back_and_its_stops_wait_for_both(tmp_path: Path) -> None:
    fleet = RunningFleet(tmp_path / "demo", routers=2)
    try:
        fleet.wait_ready()
        lines: list[str] = []
        judge = Judge(lines.append)
        fleet.run(server_restart(fleet.demo, judge))
        assert not judge.failures, "\n".join(lines)
        assert fleet.demo.last_words("server", 400).count("imported a router's table") == 2

        async def restarted() -> list[str | None]:
            load = Load(fleet.demo.api, ["demo/small"], clients=8, tokens=40)
            load.start()
            await asyncio.to_thread(fleet.ctl, "restart", replica)
            await asyncio.to_thread(
                until, lambda: replica not in {r["replica_id"] for r in fleet.get("replicas")}, 40
            )
            await load.stop()
            return [request.outcome for request in load.failed]

        replica = fleet.ready("demo/small")[0]["replica_id"]
        assert asyncio.run(restarted()) == []
    finally:
        fleet.close()


def test_one_that_hangs_keeps_neither_clients_nor_route_changes_from_the_other(start: Callable[..., Any]) -> None:
    with start(2) as running:
        until(lambda: len(serving(running)) == 2)
        stopped = pids(running)["router-0"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            running.kill()
            running.start_again()
            until(lambda: "router-silent" in problems(running), 20, running.log)
            with httpx.Client(trust_env=False, timeout=20) as client:
                assert client.get(f"{running.api}/health").status_code == 200
            version = running.get("server")["epoch"]

            def routed_by() -> str:
                table = msgspec.msgpack.decode((running.state / "routes.msgpack").read_bytes(), type=RouteTable)
                return table.version.epoch

            until(lambda: routed_by() == version, 20, running.log)
        finally:
            os.kill(stopped, signal.SIGCONT)
        until(lambda: stopped in serving(running), 20, running.log)
        assert len(alive(running)) == 2


def test_another_number_is_reached_without_a_failed_request(start: Callable[..., Any]) -> None:
    with start(1) as running:
        before = pids(running)
        with Clients(running) as clients:
            for workers in (3, 1):
                running.kill()
                running.configure(router={"workers": workers})
                running.start_again()
                running.wait_serving()
                until(lambda count=workers: len(serving(running)) == count, 30, running.log)
                assert set(before.values()) <= serving(running)
                until(lambda count=workers: len(alive(running)) == count, 30, running.log)
                clients.serve()
        assert clients.failed == []
        assert pids(running) == before


def test_routers_of_another_version_finish_after_new_ones_accept(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    with start(2) as running:
        until(lambda: len(serving(running)) == 2)
        before = set(pids(running).values())
        other = tmp_path / "other"
        other.mkdir()
        (other / "sitecustomize.py").write_text("import llmgw; llmgw.__version__ = '99.0.0'\n")
        with Clients(running) as clients:
            running.kill()
            path = os.pathsep.join([str(other), os.environ.get("PYTHONPATH", "")])
            running.start_again(env={"PYTHONPATH": path})
            running.wait_serving()
            until(lambda: len(serving(running)) == 2 and not serving(running) & before, 30, running.log)
            until(lambda: not alive(running) & before, 30, running.log)
            clients.serve()
        assert clients.failed == []
        assert not [each for each in running.get("server")["problems"] if each["check"].startswith("router")]


def test_one_that_an_operator_ends_is_replaced_while_it_finishes(start: Callable[..., Any]) -> None:
    with start(1, drain_grace="30s") as running:
        (old,) = serving(running)
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2000}
        body |= {"stream": True, "ignore_eos": True}
        url = f"{running.api}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, trust_env=False, timeout=20) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(old, signal.SIGTERM)
            ask_anew(running)
            until(lambda: old not in serving(running) and len(serving(running)) == 1, 20, running.log)
            assert old in alive(running)
            assert any("finishing" in line for line in running.get("server")["routers"])
            os.kill(old, signal.SIGTERM)  # twice: at once
            until(lambda: old not in alive(running), 10)


def test_limits_are_shared_among_the_workers(start: Callable[..., Any]) -> None:
    with start(2, connections_max=16) as running:
        until(lambda: len(serving(running)) == 2)
        ours = next(iter(running.routers())).cmdline()
        assert {"--share-of=2", "--connections-max=16"} <= set(ours)
        running.kill()
        running.configure(router={"workers": 1, "connections_max": 16})
        running.start_again()
        running.wait_serving()
        until(lambda: len(alive(running)) == 1, 20, running.log)
        # The one that stayed has the whole of them now.
        held = [httpx.Client(trust_env=False, base_url=running.api) for _ in range(16)]
        try:
            assert [client.get("/health").status_code for client in held] == [200] * 16
            assert httpx.get(f"{running.api}/health", trust_env=False).status_code == 503
        finally:
            for client in held:
                client.close()


def test_routers_that_are_units_are_found_and_left_alone(start: Callable[..., Any]) -> None:
    with start(1) as running:
        (own,) = serving(running)
        running.process.process.terminate()
        running.process.process.wait(20)
        assert own not in alive(running)
        with Units(running) as units:
            # Before any server: by the table on disk.
            units.start(0)
            units.start(1)
            with Clients(running) as clients:
                running.configure(router={"workers": 0})
                running.start_again()
                running.wait_serving()
                until(lambda: set(pids(running)) == {"router-0", "router-1"}, 20, running.log)
                clients.serve()
                # A restart of which the server sees only that another has the name.
                running.process.process.send_signal(signal.SIGSTOP)
                units.end(0)
                units.start(0)
                until(lambda: units.has_lock(0), 20, running.log)
                running.process.process.send_signal(signal.SIGCONT)
                until(lambda: serving(running) == units.pids(), 20, running.log)
                running.process.process.terminate()
                running.process.process.wait(20)
                clients.serve()
            assert clients.failed == []
            assert units.pids() == alive(running)
            units.end(0)
            units.end(1)
            running.start_again()
            until(lambda: "router-missing" in problems(running), 20, running.log)
            assert alive(running) == set()
            with Clients(running, served=0) as clients:
                units.start(0)  # who came while there was none has waited
                clients.serve()
            assert clients.failed == []
            until(lambda: "router-missing" not in problems(running), 20, running.log)


def problems(running: Server) -> set[str]:
    """The checks of its findings; none while the server is not there yet."""
    try:
        return {each["check"] for each in running.get("server")["problems"]}
    except httpx.TransportError:
        return set()


class Units:
    """What systemd does with the unit files of the examples."""

    def __init__(self, running: Server) -> None:
        self._running = running
        self._socket = open_listener(running.api.removeprefix("http://"), "listen")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        text = (EXAMPLES / "llmgw-router@.service").read_text()
        (self._command,) = re.findall(r"^ExecStart=/usr/local/bin/llmgw (.*)$", text, re.MULTILINE)

    def start(self, instance: int) -> None:
        become = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); "
            "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); os.execv(sys.argv[2], sys.argv[2:])"
        )
        arguments = self._command.replace("%i", str(instance)).replace("/var/lib/llmgw", str(self._running.state))
        command = [sys.executable, "-m", "llmgw", *arguments.split()]
        with (self._running.folder / "units.log").open("ab") as log:
            self._processes[instance] = subprocess.Popen(
                [sys.executable, "-c", become, str(self._socket.fileno()), *command],
                pass_fds=[self._socket.fileno(), 3],
                stdout=log,
                stderr=log,
            )

    def end(self, instance: int) -> None:
        self._processes[instance].terminate()
        assert self._processes.pop(instance).wait(20) == 0

    def has_lock(self, instance: int) -> bool:
        lock = RouterFiles(self._running.state, worker_name(instance)).lock
        return lock.read_text().strip() == str(self._processes[instance].pid)

    def pids(self) -> set[int]:
        return {process.pid for process in self._processes.values()}

    def __enter__(self) -> Units:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        for process in self._processes.values():
            process.kill()
            process.wait()
