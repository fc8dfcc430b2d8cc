"""What an engine may have at a time holds for all routers together, whoever has the clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.endtoend.servers import Server, server
from tests.ports import free_port
from tests.router.support import Answer, Client, Engine, RouterProcess, Seen, post, until

LIMIT = 16


class Busy:
    """An engine that takes a while for each request, and knows how many it had at a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.running = 0
        self.most = 0
        self.served = 0

    async def script(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if seen.method == "GET":  # the server asks what it serves, which is no request of a client's
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        self.served += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood")


class Load:
    """So many clients of one router, each with one request after the other."""

    def __init__(self, router: RouterProcess, clients: int) -> None:
        self.statuses: list[int] = []
        self._router = router
        self._stopping = False
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(clients)]

    async def _ask(self) -> None:
        client = Client(*await asyncio.open_connection(self._router.host, self._router.port))
        try:
            while not self._stopping:
                client.send(post())
                self.statuses.append((await client.answer()).status)
        finally:
            client.close()

    async def stop(self) -> None:
        """Each has its answer before: an engine may not notice at once that nobody waits for it any more."""
        self._stopping = True
        await asyncio.gather(*self._tasks)


@contextlib.contextmanager
def two_routers(folder: Path, engine: Engine, **model: Any) -> Iterator[tuple[Server, list[RouterProcess]]]:
    """Two router processes, each on a port of its own, of one server; `model` is more of its model `m`."""
    api, admin = free_port(), free_port()
    endpoint = {"url": f"http://127.0.0.1:{engine.port}", "concurrency": LIMIT}
    config: dict[str, Any] = {
        "listen": f"127.0.0.1:{api}",
        "admin": {"listen": f"127.0.0.1:{admin}"},
        "state": str(folder / "state"),
        "router": {"workers": 0},
        "models": [{"name": "m", "endpoints": [endpoint], **model}],
    }
    (folder / "server.yaml").write_text(yaml.safe_dump(config))
    routers = [
        RouterProcess(folder / "state", f"--worker={worker}", "--share-of=2", listen=f"127.0.0.1:{port}")
        for worker, port in enumerate((api, free_port()))
    ]
    running = Server(folder, folder / "server.yaml", api, admin)
    try:
        yield running, routers
    finally:
        running.stop()
        for router in routers:
            router.stop()


def test_an_engine_never_has_more_and_the_router_with_the_clients_has_nearly_all_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        busy = Busy(0.05)
        engine = await Engine(busy.script).start()
        with two_routers(tmp_path, engine) as (running, routers):
            for router in routers:
                await router.serving()
            await asyncio.to_thread(running.wait_serving)
            await until(lambda: len(running.get("server")["routers"]) == 2, "the server knows both routers", 20)

            one = Load(routers[0], 40)
            await until(lambda: busy.running == LIMIT * 7 // 8, "the one with clients has seven eighths", 20)

            other = Load(routers[1], 40)
            await until(lambda: len(other.statuses) > 50, "the other serves as well", 20)
            before = len(one.statuses), len(other.statuses)
            await until(lambda: len(other.statuses) > before[1] + 200, "both are served for a while", 20)
            served = len(one.statuses) - before[0], len(other.statuses) - before[1]
            assert 0.6 < served[0] / served[1] < 1.7, served

            await one.stop()
            await until(lambda: busy.running >= LIMIT * 7 // 8, "the other has what the first does not need", 20)

            # Without a server each keeps the part that it has, and the next server reckons with those.
            await asyncio.to_thread(running.kill)
            again = Load(routers[0], 40)
            await until(lambda: len(again.statuses) > 20, "both serve", 20)
            await asyncio.to_thread(running.start_again)
            count = len(again.statuses)
            await until(lambda: len(again.statuses) > count + 200, "both serve", 20)
            assert busy.most <= LIMIT
            assert set(one.statuses + other.statuses + again.statuses) == {200}
            await other.stop()
            await again.stop()
        engine.kill()

    asyncio.run(main())


def test_what_the_catalog_says_of_a_queue_holds_and_is_seen(tmp_path: Path) -> None:
    async def main() -> None:
        go_on = asyncio.Event()

        async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await go_on.wait()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood")

        engine = await Engine(script).start()
        endpoint = {"url": f"http://127.0.0.1:{engine.port}", "concurrency": 1}
        model = {"name": "m", "endpoints": [endpoint], "queue": {"requests_max": 3}}
        with server(tmp_path, models=[model]) as running:
            answers: list[Answer] = []

            async def ask() -> None:
                host, port = running.api.removeprefix("http://").split(":")
                client = Client(*await asyncio.open_connection(host, int(port)))
                client.send(post())
                answers.append(await client.answer())
                client.close()

            asking = [asyncio.create_task(ask()) for _ in range(6)]
            await until(lambda: len(answers) == 2, "two of six are refused")
            assert {json.loads(each.body)["error"]["code"] for each in answers} == {"queue_full"}
            await until(lambda: running.get("models")[0]["queued"] == 3, "three are seen to wait")
            assert "3 queued; http://127.0.0.1" in await asyncio.to_thread(running.ctl, "models")
            go_on.set()
            await asyncio.gather(*asking)
            assert sorted(each.status for each in answers) == [200, 200, 200, 200, 503, 503]
            await until(lambda: running.get("models")[0]["queued"] == 0, "nothing waits any more")
        engine.kill()

    asyncio.run(main())
