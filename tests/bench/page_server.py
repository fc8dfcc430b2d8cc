"""The real control plane of a large fleet of pure data, on a socket: hub, store, views, admin app, pages."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path

import msgspec

from llmgw.config.catalog import Catalog
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.findings import Finding
from llmgw.messages.routes import Outcome, Telemetry
from llmgw.server.admin.app import create_admin_app
from llmgw.server.asgi import serve_asgi
from llmgw.server.backend import Backend
from llmgw.server.catalogs import ruling_catalog
from llmgw.server.hub import Hub
from llmgw.server.ids import RandomIds
from llmgw.server.loop_watch import LoopWatch
from llmgw.server.memory import StoreMemory
from llmgw.server.pages.remembered import VIEWS_S_MAX
from llmgw.server.seams import Clock
from llmgw.server.store.secrets import hash_secret
from llmgw.server.store.store import Store
from llmgw.server.upgrades.releases import Releases
from llmgw.server.upgrades.upgrades import Upgrades
from tests.bench.fleets import LargeFleet, mixed_catalog
from tests.ctl.scripted import TOKEN

FAULTY_EVERY = 10
REQUESTS = 2000
KEYS = 20
FAULT = Finding(
    check="fabric-port-down",
    severity="error",
    where="mlx5_1",
    what="mlx5_1 port 1 is not up (DOWN, Polling): no cable or dead peer",
    why="the fabric has one rail less on this node",
    remedy="check the cable, and the port at its other end",
)


class PageServer:
    """Serves in a thread of its own until `stop`. `pauses` tells how long its event loop was held up."""

    def __init__(self, state: Path, *, nodes: int, replicas: int, models: int) -> None:
        self._state = state
        self._nodes = nodes
        self._catalog = (models, replicas)
        self._ready = threading.Event()
        self.pauses = LoopWatch()
        self.url = ""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        if not self._ready.wait(120) or not self.url:
            raise RuntimeError("the control plane of the bench did not come up")

    def happen(self) -> None:
        """Something that pages may draw has happened."""
        self._loop.call_soon_threadsafe(self.hub.news.happen)

    def stop(self) -> None:
        """End it, and wait for that."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        store = await Store.open(self._state, time.time())
        try:
            await store.create_token("bench", hash_secret(TOKEN), time.time())
            revision, catalog, _ = await ruling_catalog(store, mixed_catalog(*self._catalog), time.time())
            self.hub = self._hub(store, catalog)
            backend = Backend(
                self.hub,
                store,
                listen="127.0.0.1:8080",
                config_path=None,
                revision=revision,
                started_at=time.time(),
                routers=lambda: ["router-1"],
                problems=list,
                certificates=list,
                upgrades=Upgrades(
                    self.hub, store, Releases(self._state), release_key=self._state / "release.pub"
                ),
            )
            watching = asyncio.create_task(self.pauses.run())
            server, sockets = serve_asgi(
                create_admin_app(backend, secure=False, views_s=VIEWS_S_MAX), "127.0.0.1:0"
            )
            serving = server.start(sockets)
            await server.wait_started()
            host, port = sockets[0].getsockname()[:2]
            self.url = f"http://{host}:{port}"
            self._ready.set()
            await self._stop.wait()
            self.hub.end_sessions()
            await server.stop(1)
            await serving
            watching.cancel()
        finally:
            self._ready.set()
            await store.close()

    def _hub(self, store: Store, catalog: Catalog) -> Hub:
        hub = Hub(
            epoch=store.epoch,
            catalog=catalog,
            settings=FleetSettings(),
            clock=Clock(monotonic=time.monotonic, wall=time.time),
            ids=RandomIds(),
            memory=StoreMemory(store),
            publish=lambda table: None,
        )
        large = LargeFleet(catalog, self._nodes, now=time.monotonic(), fleet=hub.fleet)
        large.register_all()
        large.until_quiet()
        for number, node in enumerate(hub.fleet.nodes.values()):
            node.certificate_expires_at = time.time() + 90 * 86400
            if number % FAULTY_EVERY == 0:
                node.inventory = msgspec.structs.replace(node.inventory, findings=[FAULT])
        rng = random.Random(1)
        hub.telemetry(
            "router-1", Telemetry(outcomes=[_outcome(rng, len(catalog.models)) for _ in range(REQUESTS)])
        )
        return hub


def _outcome(rng: random.Random, models: int) -> Outcome:
    failed = rng.random() < 0.02
    return Outcome(
        model=f"model-{rng.randrange(models):02d}",
        endpoint=None,
        status=502 if failed else 200,
        error="the engine closed the connection" if failed else None,
        first_byte_s=rng.uniform(0.05, 2.0),
        total_s=rng.uniform(2.0, 20.0),
        stream=True,
        key=f"k{rng.randrange(KEYS)}",
        prompt_tokens=rng.randrange(10, 8000),
        completion_tokens=rng.randrange(1, 2000),
        queued_s=rng.uniform(0.0, 0.3),
    )
