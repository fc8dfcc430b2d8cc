"""The gateway as a target: router processes as the server starts them, and the server's end of their sockets.

The table is written as the control process writes it, and telemetry is read as it reads it: the routers do all
the work that they do in production. Which features are on is decided by the table.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field, replace

import msgspec

from llmgw import __version__
from llmgw.config.listeners import open_listener
from llmgw.messages.router_files import RouterFiles, worker_name
from llmgw.messages.routes import (
    KeyRoute,
    ModelRoute,
    RouteEndpoint,
    RouteTable,
    TableVersion,
    Telemetry,
    UsageStored,
)
from llmgw.server.router_link import RouterLink
from tests.bench.router.processes import start, wait_until
from tests.bench.router.targets import MODEL, Place, Target, TargetError

KEY = "sk-llmgw-bench-0000000000000000000000000000000000000000000"
NARROW = "narrow"
"""A model whose one endpoint takes one request at a time: the next one waits in the queue."""
APPLY_S = 10.0
CONNECTIONS_MAX = 12_000


@dataclass(frozen=True)
class Features:
    """What a request passes through. All of it is on where the gateway stands beside others."""

    keys: bool = True
    """A key is asked for, out of `keys_known`, and its limits are kept."""
    affinity: bool = False
    """Conversations come back to their engine. Off by default, in the product too."""
    queue: bool = True
    """Endpoints take a limited number of requests at a time, and others wait."""
    usage: bool = True
    """The engines say what a request took, and the router finds it. What they do not say cannot be asked of the
    table, so without it the router looks for it in vain."""
    telemetry: bool = True
    """The control process reads outcomes, which counts and metrics are made of."""

    keys_known: int = 1000


ALL = Features()


def table_of(features: Features, engine_ports: tuple[int, ...], number: int) -> RouteTable:
    """The table with these features, for the bench's engines."""
    endpoints = [
        RouteEndpoint(
            id=f"replica-{i}",
            host="127.0.0.1",
            port=port,
            node=f"node-{i}",
            concurrency=8192 if features.queue else None,
        )
        for i, port in enumerate(engine_ports)
    ]
    narrow = [replace_concurrency(endpoints[0], 1)]
    names = [KEY, *(f"sk-llmgw-other-{i}" for i in range(1, features.keys_known))] if features.keys else []
    return RouteTable(
        version=TableVersion("bench", number),
        models=[
            ModelRoute(name=MODEL, endpoints=endpoints, prefix_affinity=features.affinity),
            ModelRoute(name=NARROW, endpoints=narrow),
        ],
        keys=[
            KeyRoute(
                id=f"key-{i}",
                hash=hashlib.sha256(name.encode()).digest(),
                models=[MODEL, NARROW],
                requests_per_minute=10**9,
                tokens_per_minute=10**12,
                concurrency=10**6,
            )
            for i, name in enumerate(names)
        ],
        keys_required=features.keys,
    )


def replace_concurrency(endpoint: RouteEndpoint, concurrency: int) -> RouteEndpoint:
    """The same engine as an endpoint of its own."""
    return msgspec.structs.replace(endpoint, id=f"{endpoint.id}-narrow", concurrency=concurrency)


@dataclass
class Told:
    """What a router's telemetry said, added up."""

    acked: TableVersion | None = None
    statuses: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    in_flight: int = 0
    prompt_tokens: int = 0

    def add(self, telemetry: Telemetry) -> None:
        self.acked = telemetry.acked
        self.in_flight = sum(telemetry.in_flight.values())
        self.dropped += telemetry.dropped
        self.statuses.update(outcome.status for outcome in telemetry.outcomes)
        if telemetry.usage is not None:
            self.prompt_tokens += sum(row.prompt_tokens for row in telemetry.usage.rows if row.key)


class ControlEnd(threading.Thread):
    """The control process's end of one router's socket, in a thread of the bench."""

    def __init__(self, place: Place, worker: int) -> None:
        super().__init__(daemon=True)
        self.told = Told()
        self._state = place.folder
        self._worker = worker_name(worker)
        self._loop = asyncio.new_event_loop()
        self._stopped: asyncio.Future[None] = self._loop.create_future()

    def run(self) -> None:
        self._loop.run_until_complete(self._read())

    async def _read(self) -> None:
        self._link = RouterLink(
            self._state, on_hello=lambda hello: None, on_telemetry=self._take, worker=self._worker
        )
        reading = self._loop.create_task(self._link.run())
        await self._stopped
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    def _take(self, telemetry: Telemetry) -> None:
        self.told.add(telemetry)
        if (usage := telemetry.usage) is not None:
            self._link.send_stored(UsageStored(ledger=usage.ledger, number=usage.number))

    def publish(self, table: RouteTable) -> None:
        """Have the router route by this table, and wait until it does. Raises TargetError."""
        self._loop.call_soon_threadsafe(self._link.send_table, table)
        if not wait_until(lambda: self.told.acked == table.version, APPLY_S):
            raise TargetError(f"{self._worker} did not take the table {table.version} within {APPLY_S:g} s")

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set_result, None)
        self.join()


class Gateway(Target):
    """`workers` routers on one listening socket."""

    def __init__(self, name: str = "llmgw", features: Features = ALL, workers: int = 1) -> None:
        super().__init__(name, __version__)
        self._features = features
        self._workers = workers
        self._tables = 0
        self._ends: list[ControlEnd] = []
        self._place: Place | None = None

    @property
    def key(self) -> str | None:  # type: ignore[override]
        return KEY if self._features.keys else None

    def start(self, place: Place) -> None:
        state = place.folder / self.name
        state.mkdir(mode=0o700)
        self._place = place = replace(place, folder=state)
        table = RouterFiles(state, worker_name(0)).table
        table.touch(mode=0o600)
        table.write_bytes(msgspec.msgpack.encode(self._next_table()))
        self.log = state / "router.log"
        with open_listener("127.0.0.1:0", "the bench") as listener:
            self.port = listener.getsockname()[1]
            for worker in range(self._workers):
                argv = [
                    *(sys.executable, "-m", "llmgw", "router", f"--state={state}", f"--worker={worker}"),
                    *(f"--listen-fd={listener.fileno()}", f"--share-of={self._workers}"),
                    f"--connections-max={CONNECTIONS_MAX}",
                ]
                self.processes.append(start(argv, place.cores.gateway, self.log, pass_fds=[listener.fileno()]))
        self.wait_serving()
        self._read_telemetry(self._features.telemetry)

    def stop(self) -> None:
        self._read_telemetry(False)
        super().stop()

    def become(self, features: Features) -> None:
        """Go on with other features. Raises TargetError when the routers do not take them."""
        self._features = features
        self._read_telemetry(True)
        table = self._next_table()
        for each in self._ends:
            each.publish(table)
        self._read_telemetry(features.telemetry)

    @property
    def told(self) -> list[Told]:
        """What each router told."""
        return [each.told for each in self._ends]

    def _next_table(self) -> RouteTable:
        assert self._place is not None
        self._tables += 1
        return table_of(self._features, self._place.engine_ports, self._tables)

    def _read_telemetry(self, wanted: bool) -> None:
        assert self._place is not None
        if wanted and not self._ends:
            self._ends = [ControlEnd(self._place, worker) for worker in range(self._workers)]
            for each in self._ends:
                each.start()
            if not wait_until(lambda: all(each.told.acked is not None for each in self._ends), APPLY_S):
                raise TargetError(f"{self.name} sent no telemetry within {APPLY_S:g} s")
        elif not wanted:
            for each in self._ends:
                each.stop()
            self._ends = []
