"""A real server process with many agents: CPU, memory, a report's time, and what a restart of the server costs.

The agents run the product's own loop over mutual TLS in two client processes; their shards are ready at once, and
some end by themselves, so that every few moments a transition must reach history.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import yaml

from llmgw.pki.authority import Authority
from tests.bench.agent_clients import Told, node_name
from tests.bench.figures import Figures
from tests.ports import free_port

CLIENTS = 2
FILL_LIMIT_S = 90.0
CHURN_PER_S = 1.0
"""Shards that end by themselves: a fleet that is far from well."""
STORM_PER_S = 100.0
"""The same while the server is killed: some are acknowledged within the last milliseconds of its life."""
STORM_S = (0.5, 1.5)
CLOSE_S = 0.05
GROWTH_LIMIT_PERCENT = 10.0
PAUSE_LIMIT_MS = 250.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How many, and for how long."""
    parser.add_argument("--count", type=int, default=500, help="agents")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the steady fleet is watched")
    parser.add_argument("--kills", type=int, default=5, help="kill -9 of the server while shards end")
    parser.add_argument("--settle", type=float, default=45.0, help="liveness.settle of the server, seconds")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the server's log and state")


def run(options: argparse.Namespace) -> Figures:
    """Measure and return the figures."""
    folder = Path(tempfile.mkdtemp(prefix="llmgw-bench-"))
    try:
        return asyncio.run(_Bench(folder, options.count, options.seconds, options.settle, options.kills).run())
    finally:
        if options.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Client:
    """One process of agents, and the last line it told."""

    process: asyncio.subprocess.Process
    first: int
    told: dict[str, int] = field(default_factory=dict)


@dataclass
class _Watched:
    """The server over the steady time."""

    cpu_percent: float = 0.0
    rss_mib: list[float] = field(default_factory=list)


class _Bench:
    def __init__(self, folder: Path, count: int, seconds: float, settle_s: float, kills: int) -> None:
        self.folder = folder
        self.count = count
        self.seconds = seconds
        self.settle_s = settle_s
        self.kills = kills
        self.killed_at: list[float] = []
        self.figures = Figures(f"agents: {count}, a report every 5 s, {seconds:g} s")
        self.clients: list[_Client] = []
        self.server: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.admin_port = free_port()
        self.wanted_shards = 0

    async def run(self) -> Figures:
        self._prepare()
        started = time.monotonic()
        self._start_server()
        try:
            await self._start_clients()
            await self._until(lambda: self._registered() >= self.count, "agents to register")
            self.figures.add("first registrations: all agents", time.monotonic() - started, "s")
            await self._pauses()
            await self._until(lambda: self._held() > 0, "the first shard to be ready")
            filling = time.monotonic()
            await self._until(lambda: self._held() >= self.wanted_shards, "shards to be ready")
            self.figures.add("shards held by the agents", self._held(), "shards")
            self.figures.add("first shard to all shards ready", time.monotonic() - filling, "s")
            await self._pauses(PAUSE_LIMIT_MS)
            begun = time.monotonic()
            watched = await self._watch()
            ended = time.monotonic()
            restarted = await self._kill_again_and_again()
            told = await self._end_clients()
        finally:
            await self._end_all()
        self._judge(told, watched, begun, ended, restarted)
        return self.figures

    # Coming up.

    def _prepare(self) -> None:
        now = time.time()
        authority = Authority.create(
            self.folder / "pki", name="bench", permit_dns=["localhost"], permit_ip=["127.0.0.0/8"], now=now
        )
        _write_private(self.folder / "ca.pem", authority.ca_pem)
        for name, issued in [
            ("server", authority.issue_server(["127.0.0.1"], now)),
            *(
                # All on one address: that of the client processes, which answer for all engines.
                (node_name(i), authority.issue_client(node_name(i), "127.0.0.1", now))
                for i in range(self.count)
            ),
        ]:
            _write_private(self.folder / f"{name}.pem", issued.cert_pem)
            _write_private(self.folder / f"{name}-key.pem", issued.key_pem)
        config = {
            "listen": f"127.0.0.1:{free_port()}",
            "admin": {"listen": f"127.0.0.1:{self.admin_port}"},
            "agents": {
                "listen": f"127.0.0.1:{self.port}",
                "tls": {
                    "ca": str(self.folder / "ca.pem"),
                    "cert": str(self.folder / "server.pem"),
                    "key": str(self.folder / "server-key.pem"),
                    "revocations": str(self.folder / "pki" / "revoked.pem"),
                },
            },
            "state": str(self.folder / "state"),
            "liveness": {"settle": f"{self.settle_s:g}s"},
            "models": self._models(),
        }
        _write_private(self.folder / "server.yaml", yaml.safe_dump(config))

    def _models(self) -> list[dict[str, Any]]:
        """About four shards a node: half of them replicas of one node, half gangs of two; some room is left."""
        models = []
        for nodes, shards in ((1, 2), (2, 2)):
            replicas = max(1, int(self.count * shards * 0.95) // nodes // 5)
            for i in range(5):
                self.wanted_shards += replicas * nodes
                profile = {"engine": "sim", "nodes": nodes, "gpus_per_node": 2, "replicas": replicas}
                models.append({"name": f"bench/{nodes}-{i}", "profiles": [profile]})
        return models

    def _start_server(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "llmgw", "server", "--config", str(self.folder / "server.yaml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _start_clients(self) -> None:
        share = -(-self.count // CLIENTS)
        for first in range(0, self.count, share):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.bench.agent_clients", str(self.folder), str(self.port)),
                *(str(first), str(min(share, self.count - first))),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self.clients.append(_Client(process, first))
        self._listening = [asyncio.create_task(self._listen(client)) for client in self.clients]

    async def _listen(self, client: _Client) -> None:
        assert client.process.stdout is not None
        while line := await client.process.stdout.readline():
            client.told = json.loads(line)

    # While it runs.

    async def _watch(self) -> _Watched:
        """The steady fleet, with transitions; the last two seconds are quiet, so that all of them are stored."""
        assert self.server is not None
        watched = _Watched()
        process = psutil.Process(self.server.pid)
        self._say(f"churn {CLIENTS / CHURN_PER_S}")
        begun, cpu = time.monotonic(), _cpu_s(process)
        while time.monotonic() - begun < self.seconds:
            if self.seconds - (time.monotonic() - begun) < 2.0:
                self._say("quiet")
            watched.rss_mib.append(process.memory_info().rss / 2**20)
            await asyncio.sleep(0.5)
        watched.cpu_percent = 100 * (_cpu_s(process) - cpu) / (time.monotonic() - begun)
        return watched

    async def _kill_again_and_again(self) -> float:
        """kill -9 while shards end and their ends are acknowledged. Returns when the last one was."""
        for left in reversed(range(self.kills)):
            self._say(f"churn {CLIENTS / STORM_PER_S}")
            await self._until(self._acknowledges(), "the ends of shards to be acknowledged")
            await asyncio.sleep(random.uniform(*STORM_S))
            killed = await self._restart(self.count if left == 0 else self.count // 2)
        self._say("quiet")
        # What ended while there was no server is told with the next heartbeats.
        await self._until(lambda: self._unacknowledged() == 0, "all ends of shards to be acknowledged")
        return killed

    async def _restart(self, count: int) -> float:
        """Kill the server, start it again, and wait until so many have registered. Returns when that began."""
        assert self.server is not None
        before = self._registered()
        begun = time.monotonic()
        self.killed_at.append(begun)
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()
        self._start_server()
        await self._until(lambda: self._registered() >= before + count, "agents to register again")
        return begun

    async def _pauses(self, limit_ms: float | None = None) -> None:
        """How long the server's event loop was held up at most, of late."""
        async with httpx.AsyncClient(trust_env=False, timeout=90.0) as client:
            text = (await client.get(f"http://127.0.0.1:{self.admin_port}/metrics")).text
        values = dict(line.split() for line in text.splitlines() if line.startswith("llmgw_loop_"))
        late_ms, busy_ms = (1000 * float(values[f"llmgw_loop_{what}_seconds"]) for what in ("pause", "busy"))
        self.figures.add("  the server's longest pause meanwhile", late_ms, "ms")
        self.figures.add("  of its own doing (CPU time)", busy_ms, "ms", limit_ms)

    def _acknowledges(self) -> Callable[[], bool]:
        before = self._told("acknowledged")
        return lambda: self._told("acknowledged") > before

    def _unacknowledged(self) -> int:
        return self._told("ended") - self._told("acknowledged")

    def _told(self, what: str) -> int:
        return sum(client.told.get(what, 0) for client in self.clients)

    def _registered(self) -> int:
        return self._told("registered")

    def _held(self) -> int:
        return self._told("held")

    def _say(self, line: str) -> None:
        for client in self.clients:
            assert client.process.stdin is not None
            client.process.stdin.write(f"{line}\n".encode())

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + FILL_LIMIT_S
        while not holds():
            if time.monotonic() > deadline or self.server is None or self.server.poll() is not None:
                words = (self.folder / "server.log").read_text(errors="replace")[-2000:]
                raise SystemExit(
                    f"waited in vain for {what}: {self._registered()} registrations, {self._held()} shards of "
                    f"{self.wanted_shards}; the server's last words:\n{words}"
                )
            await asyncio.sleep(0.05)

    # Going down.

    async def _end_clients(self) -> list[Told]:
        self._say("end")
        await asyncio.gather(*(client.process.wait() for client in self.clients), *self._listening)
        return [
            msgspec.json.decode((self.folder / f"told-{client.first}.json").read_bytes(), type=Told)
            for client in self.clients
        ]

    async def _end_all(self) -> None:
        for client in self.clients:
            if client.process.returncode is None:
                client.process.kill()
                await client.process.wait()
        if self.server is not None and self.server.poll() is None:
            # A clean stop ends the router too.
            self.server.terminate()
            try:
                await asyncio.to_thread(self.server.wait, 60)
            except subprocess.TimeoutExpired:
                self.server.kill()

    # What came of it.

    def _judge(self, told: list[Told], watched: _Watched, begun: float, ended: float, restarted: float) -> None:
        figures = self.figures
        reports = sorted(s for item in told for when, s in item.reports if begun <= when <= ended)
        figures.add("the server's CPU", watched.cpu_percent, "% of one CPU")
        early, late = _halves(watched.rss_mib)
        figures.add("the server's memory, first quarter", early, "MiB")
        figures.add("the server's memory, last quarter", late, "MiB")
        figures.add("growth of it", 100 * (late / early - 1), "%", GROWTH_LIMIT_PERCENT)
        figures.add("reports", len(reports), "reports")
        figures.add("a report, median", 1000 * statistics.median(reports), "ms")
        figures.add("a report, p99", 1000 * reports[int(len(reports) * 0.99)], "ms")
        log = (self.folder / "server.log").read_text(errors="replace")
        figures.add('"database is locked" in the log', log.count("database is locked"), "times", 0)
        markers = {marker: when for item in told for when, marker in item.markers}
        stored = list(_reasons(self.folder / "state" / "llmgw.db"))
        close = sum(1 for when in markers.values() if any(0 <= kill - when <= CLOSE_S for kill in self.killed_at))
        figures.add("transitions sent and acknowledged", len(markers), "transitions")
        figures.add("kill -9 of the server while they flow", len(self.killed_at), "times")
        figures.add(f"of these acknowledged within {1000 * CLOSE_S:g} ms before one", close, "transitions")
        figures.add("of these not in history", len(markers.keys() - set(stored)), "transitions", 0)
        figures.add("of these twice in history", len(stored) - len(set(stored)), "transitions", 0)
        again = sorted(when - restarted for item in told for when in item.registered if when > restarted)
        figures.add("kill -9 of the server to half of the agents back", again[self.count // 2], "s")
        figures.add("kill -9 of the server to all agents back", again[self.count - 1], "s")


def _write_private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(text)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _halves(values: list[float]) -> tuple[float, float]:
    quarter = max(1, len(values) // 4)
    return statistics.median(values[:quarter]), statistics.median(values[-quarter:])


def _reasons(path: Path) -> Iterator[str]:
    """The agents' own words in history: `rank 0 on node: reason` without what the server put before them."""
    with closing(sqlite3.connect(path)) as connection:
        for (reason,) in connection.execute("SELECT reason FROM history WHERE event = 'shard stopped'"):
            yield reason.partition(": ")[2]
