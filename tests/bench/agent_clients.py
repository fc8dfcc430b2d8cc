"""Many agents in one process: each runs the product's own loop over mutual TLS and keeps shards of its own.

Started by the `agents` bench as `python -m tests.bench.agent_clients FOLDER PORT FIRST COUNT`. It obeys lines on
stdin (`churn SECONDS`, `quiet`, `end`), tells on stdout how it stands once a second, and at the end everything.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import uvloop

from llmgw.agent.conversation import Life, SystemClock
from llmgw.agent.loop import AgentLoop
from llmgw.messages.agent import HeldShard, Inventory, LogChunk, ShardSpec
from tests.bench.fleets import inventory
from tests.bench.https_client import LightTransport

FABRICS = 4
HEARTBEAT_S = 5.0
# The agent's own defaults.
RECONNECT_BASE_S = 1.0
RECONNECT_MAX_S = 30.0


class Told(msgspec.Struct):
    """What one process of agents tells the bench."""

    registered: list[float] = []
    """When registrations were answered (monotonic clock of the machine)."""
    reports: list[tuple[float, float]] = []
    """(when, seconds) of every report."""
    markers: list[tuple[float, str]] = []
    """(when, reason) of ended shards that the server acknowledged."""
    held: int = 0
    failed_calls: int = 0


def node_name(number: int) -> str:
    """The id of an agent by its number."""
    return f"node{number:04d}"


class InstantKeeper:
    """Shards that are ready at once, and now and then one that ends by itself."""

    def __init__(self, node_id: str, told: Told, engines_port: int) -> None:
        self._node_id = node_id
        self._engines_port = engines_port
        self._told = told
        self._shards: dict[str, HeldShard] = {}
        self._listener: Callable[[str], None] = lambda _: None
        self.ended = 0

    def listen(self, listener: Callable[[str], None]) -> None:
        self._listener = listener

    async def held(self) -> list[HeldShard]:
        return list(self._shards.values())

    async def start(self, spec: ShardSpec) -> None:
        if spec.shard_id not in self._shards:
            leader = spec.rank == 0
            self._shards[spec.shard_id] = HeldShard(
                spec=spec,
                phase="ready",
                http_port=self._engines_port if leader else None,
                rendezvous_port=22000 if leader and spec.nodes > 1 else None,
                engine_pid=4711,
            )

    async def stop(self, shard_id: str, reason: str) -> None:
        self._end(shard_id, "asked to stop")

    async def forget(self, shard_ids: list[str]) -> None:
        for shard_id in shard_ids:
            ended = self._shards.pop(shard_id, None)
            if ended is not None and ended.reason is not None:
                self._told.markers.append((time.monotonic(), ended.reason))

    async def read_log(self, *, request_id: str, shard_id: str, **_: object) -> LogChunk:
        return LogChunk(request_id=request_id, shard_id=shard_id)

    def live(self) -> list[str]:
        """Ids of shards that have not ended."""
        return [shard_id for shard_id, held in self._shards.items() if held.phase == "ready"]

    def end_one(self) -> None:
        """One shard ends by itself: a transition that history must hold."""
        live = self.live()
        if live:
            self._end(live[0], "ended by itself")

    def _end(self, shard_id: str, why: str) -> None:
        held = self._shards.get(shard_id)
        if held is None or held.phase != "ready":
            return
        self.ended += 1
        self._shards[shard_id] = msgspec.structs.replace(
            held,
            phase="stopped",
            version=held.version + 1,
            reason=f"{why} [{self._node_id}-{self.ended}]",
        )
        self._listener(shard_id)


class Clients:
    """All agents of this process."""

    def __init__(self, folder: Path, port: int, first: int, count: int, engines_port: int) -> None:
        self.told = Told()
        self.keepers: list[InstantKeeper] = []
        self.churn_s: float | None = None
        self._random = random.Random(first)
        self._engines_port = engines_port
        self._loops = [self._agent(folder, port, number) for number in range(first, first + count)]
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Until `end` is read or the bench has gone."""
        tasks = [asyncio.create_task(loop.run()) for loop in self._loops]
        tasks += [asyncio.create_task(self._churn()), asyncio.create_task(self._tell())]
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        while line := (await reader.readline()).decode().split():
            if line[0] == "churn":
                self.churn_s = float(line[1])
            elif line[0] == "quiet":
                self.churn_s = None
            else:
                break
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _churn(self) -> None:
        """One transition of some agent every `churn_s` seconds."""
        while True:
            await asyncio.sleep(self.churn_s or 0.2)
            if self.churn_s is not None:
                self._random.choice(self.keepers).end_one()

    async def _tell(self) -> None:
        while True:
            self.told.held = sum(len(keeper.live()) for keeper in self.keepers)
            numbers = {
                "registered": len(self.told.registered),
                "held": self.told.held,
                "ended": sum(keeper.ended for keeper in self.keepers),
                "acknowledged": len(self.told.markers),
            }
            print(json.dumps(numbers), flush=True)
            await asyncio.sleep(0.5)

    def _agent(self, folder: Path, port: int, number: int) -> AgentLoop:
        node_id = node_name(number)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(folder / "ca.pem")
        context.load_cert_chain(folder / f"{node_id}.pem", folder / f"{node_id}-key.pem")
        keeper = InstantKeeper(node_id, self.told, self._engines_port)
        self.keepers.append(keeper)
        said = inventory(node_id, f"ib-{number % FABRICS}")

        async def read() -> Inventory:
            return _warmer(said, self._random)

        def measured(path: str, seconds: float) -> None:
            if path.endswith("/report"):
                self.told.reports.append((time.monotonic(), seconds))
            elif path.endswith("/register"):
                self.told.registered.append(time.monotonic())

        return AgentLoop(
            node_id=node_id,
            life=Life(boot_id=f"boot-{os.getpid()}-{number}", instance="one", instance_started_at=1.0),
            transport=LightTransport("127.0.0.1", port, context, measured),
            keeper=keeper,
            inventory=read,
            clock=SystemClock(),
            randomness=self._random,
            heartbeat_interval_s=HEARTBEAT_S,
            reconnect_base_s=RECONNECT_BASE_S,
            reconnect_max_s=RECONNECT_MAX_S,
        )


def _warmer(said: Inventory, randomness: random.Random) -> Inventory:
    """The same with numbers that move at every beat, as real ones do."""
    gpus = [
        msgspec.structs.replace(
            gpu, temperature_c=randomness.randint(35, 80), utilization_percent=randomness.randint(0, 100)
        )
        for gpu in said.gpus
    ]
    traffic = randomness.getrandbits(40)
    ports = [
        msgspec.structs.replace(port, counters={**port.counters, "port_xmit_data": traffic})
        for port in said.ports
    ]
    return msgspec.structs.replace(said, gpus=gpus, ports=ports)


async def _answer_probes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All engines of all agents: whatever is asked is answered at once."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            if "content-length:" in head:
                await reader.readexactly(int(head.split("content-length:", 1)[1].split("\r\n", 1)[0]))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        writer.close()


def main() -> None:
    """Run until stdin says `end`; then write everything told into FOLDER/told-FIRST.json."""
    folder, port, first, count = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    async def all_of_them() -> Told:
        engines = await asyncio.start_server(_answer_probes, "127.0.0.1", 0)
        clients = Clients(folder, port, first, count, engines.sockets[0].getsockname()[1])
        await clients.run()
        return clients.told

    told = uvloop.run(all_of_them())
    (folder / f"told-{first}.json").write_bytes(msgspec.json.encode(told))


if __name__ == "__main__":
    main()
