"""The fleet on IPv6 only, behind a plain TCP proxy, and with proxies in the environment that lead nowhere."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import httpx
import psutil
import pytest

from llmgw.sim.demo_fleet import DemoFleet
from tests.endtoend.conftest import RunningFleet, edited, until

T = TypeVar("T")

IDLE_S = 30.0
LATENCY_S = 0.04
DEAD = "http://127.0.0.1:9"
PROXY_VARIABLES = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


class TcpProxy:
    """Passes TCP on, late, and cuts connections on which nothing passed for `IDLE_S`. Runs in a thread."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._server = self._run(asyncio.start_server(self._pass_on, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.accepted = 0
        self.cut = 0
        self.longest_silence_s = 0.0

    def drop_all(self) -> int:
        """Cut every connection; how many there were."""

        async def drop() -> int:
            dropped = len(self._open)
            for writer in list(self._open):
                writer.transport.abort()
            return dropped // 2

        return self._run(drop())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self.drop_all()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, there_writer}
        self._open |= both
        quiet_since = [time.monotonic()]
        pumps = [
            asyncio.create_task(self._pump(reader, there_writer, quiet_since)),
            asyncio.create_task(self._pump(there_reader, writer, quiet_since)),
            asyncio.create_task(self._watch(quiet_since)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for each in both:
            each.transport.abort()
        self._open -= both

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, quiet_since: list[float]
    ) -> None:
        while data := await reader.read(65536):
            self.longest_silence_s = max(self.longest_silence_s, time.monotonic() - quiet_since[0])
            quiet_since[0] = time.monotonic()
            await asyncio.sleep(LATENCY_S)
            writer.write(data)
            await writer.drain()

    async def _watch(self, quiet_since: list[float]) -> None:
        # What passes meanwhile moves the end.
        while (quiet_s := time.monotonic() - quiet_since[0]) < IDLE_S:  # noqa: ASYNC110
            await asyncio.sleep(IDLE_S - quiet_s)
        self.cut += 1


@pytest.fixture(scope="module")
def ipv6_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    if not has_ipv6():
        pytest.skip("this machine has no ::1")
    running = RunningFleet(
        tmp_path_factory.mktemp("ipv6") / "demo",
        host="::1",
        # Two nodes of one machine with one address: their ports must not collide either.
        nodes={"node01": ("::1", "ib-a"), "node02": ("::1", "ib-a")},
        replicas_big=1,
        replicas_small=1,
    )
    try:
        running.wait_ready(1, 1)
        yield running
    finally:
        running.close()
    assert not running.demo.engines()


def test_a_fleet_on_ipv6_serves_through_the_gateway(ipv6_fleet: RunningFleet) -> None:
    assert ipv6_fleet.demo.api.startswith("http://[::1]:")
    for model in ("demo/big", "demo/small"):
        answer = ipv6_fleet.chat(model)
        assert answer.status_code == 200, answer.text
    for replica in ipv6_fleet.ready():
        assert replica["endpoint"].startswith("[::1]:")


def test_ctl_works_over_ipv6(ipv6_fleet: RunningFleet) -> None:
    assert {node["address"] for node in ipv6_fleet.ctl_json("nodes")} == {"::1"}
    replica = ipv6_fleet.ready("demo/big")[0]["replica_id"]
    assert ipv6_fleet.ctl("logs", replica, "--rank", "1").stdout.strip()
    made = ipv6_fleet.ctl_json("token", "create", "far")
    for server in (ipv6_fleet.demo.admin, ipv6_fleet.demo.admin + "/"):
        assert "node01" in ipv6_fleet.ctl("nodes", "--server", server, "--token", made["token"]).stdout
    assert "[::1]:" in ipv6_fleet.ctl("status").stdout


@pytest.fixture(scope="module")
def behind_proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningFleet, TcpProxy]]:
    """One node that reaches the server through a TCP proxy only; every process has dead HTTP proxies set."""
    proxies: list[TcpProxy] = []

    def adjust(demo: DemoFleet) -> None:
        proxies.append(TcpProxy("127.0.0.1", httpx.URL(demo.agents).port or 0))
        with edited(demo.folder / "node01" / "agent.yaml") as config:
            config["server"] = f"https://127.0.0.1:{proxies[0].port}"

    with pytest.MonkeyPatch.context() as environment:
        for name in PROXY_VARIABLES:
            environment.setenv(name, DEAD)
        for name in ("NO_PROXY", "no_proxy"):
            environment.delenv(name, raising=False)
        running = RunningFleet(
            tmp_path_factory.mktemp("networks") / "demo",
            adjust=adjust,
            nodes={"node01": ("127.0.0.31", "ib-a")},
            replicas_big=0,
            replicas_small=1,
            # Each question would come with the end of a poll.
            fabrics={"managers_interval": "1h", "map_interval": "1h"},
        )
        try:
            running.wait_ready(0, 1)
            yield running, proxies[0]
        finally:
            running.close()
            proxies[0].close()


def test_proxies_in_the_environment_are_ignored_by_every_process(
    behind_proxies: tuple[RunningFleet, TcpProxy],
) -> None:
    fleet, _ = behind_proxies
    names = ["server", "node01"]
    for name in names:
        environ = psutil.Process(fleet.demo.pid(name)).environ()
        assert {environ[variable] for variable in PROXY_VARIABLES} == {DEAD}
    answer = fleet.chat("demo/small")
    assert answer.status_code == 200, answer.text
    assert fleet.ctl_json("nodes")[0]["node_id"] == "node01"


def test_an_agent_behind_a_tcp_proxy_is_back_at_once_when_all_connections_drop(
    behind_proxies: tuple[RunningFleet, TcpProxy],
) -> None:
    fleet, proxy = behind_proxies
    before = fleet.history("node01")
    replicas = [each["replica_id"] for each in fleet.ready()]
    for _ in range(3):
        accepted = proxy.accepted
        until(lambda: proxy.drop_all() > 0, 10)
        until(lambda accepted=accepted: proxy.accepted > accepted, 5)
        until(lambda: fleet.node("node01")["last_heard_s"] < 1, 5)
    assert fleet.history("node01") == before, "nothing that an operator need know has happened"
    # A command that comes through shows that the long poll is there again.
    fleet.ctl("scale", "demo/small", "2")
    fleet.wait_ready(0, 2)
    fleet.ctl("scale", "demo/small", "1", "--yes")
    until(lambda: [each["replica_id"] for each in fleet.ready()] == replicas, 20, fleet.story)


@pytest.mark.scenario
def test_the_long_poll_fits_into_the_time_that_proxies_hold_idle_connections(
    behind_proxies: tuple[RunningFleet, TcpProxy],
) -> None:
    fleet, proxy = behind_proxies
    said = fleet.demo.last_words("node01", 1000).count("polling fails")
    until(lambda: proxy.longest_silence_s > 20, 60)
    assert proxy.cut == 0
    assert fleet.demo.last_words("node01", 1000).count("polling fails") == said
