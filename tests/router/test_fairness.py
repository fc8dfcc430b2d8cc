"""Two callers at one queue through real sockets: who sends ten times as much is served no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import msgspec

from llmgw.messages.routes import RouteTable, TableVersion
from llmgw.router.caller import Caller
from llmgw.router.client import ClientConnection
from llmgw.router.exchange import Exchange
from llmgw.router.limits import Limits
from llmgw.router.request import Request
from llmgw.router.service import Service
from tests.router.support import Client, Engine, Seen, model, post, until
from tests.router.test_queueing import Gate, limited, named

SLOTS = 4


class Known(Service):
    """Callers are told by what they call their session, and their priorities by its first letter."""

    def open_exchange(self, client: ClientConnection, request: Request) -> Exchange:
        exchange = super().open_exchange(client, request)
        name = request.session.decode()
        exchange._caller = Caller(name, priority=1 if name.startswith("high") else 0)
        return exchange


class World:
    """A router in this process, an engine that takes some milliseconds, and clients that ask all the time."""

    def __init__(self) -> None:
        self.served: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.port = 0
        self._tasks: list[asyncio.Task[None]] = []

    def ask(self, caller: str, clients: int) -> None:
        self._tasks += [asyncio.create_task(self._ask(caller)) for _ in range(clients)]

    async def _ask(self, caller: str) -> None:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        try:
            while True:
                client.send(post(headers=b"x-session-id: %b\r\n" % caller.encode()))
                answer = await client.answer()
                self.statuses[answer.status] += 1
                if answer.status == 200:
                    self.served[caller] += 1
        finally:
            client.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def world(**fields: object) -> AsyncIterator[World]:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.004)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood")

    service = Known(Limits())
    engine = await Engine(script).start()
    route = model("m", engine, **fields)
    endpoints = [msgspec.structs.replace(each, concurrency=SLOTS) for each in route.endpoints]
    route = msgspec.structs.replace(route, endpoints=endpoints)
    service.apply(RouteTable(version=TableVersion("e", 1), models=[route]))
    sweeping = asyncio.create_task(service.sweep())
    listener = await asyncio.get_running_loop().create_server(service.accept, "127.0.0.1", 0)
    made = World()
    made.port = listener.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        await made.stop()
        await until(lambda: not service.table.queued() and not service.table.in_flight(), "nothing is left")
        assert service.bodies.held == 0
        sweeping.cancel()
        listener.close()
        engine.kill()


def test_who_sends_ten_times_as_much_is_served_equally() -> None:
    async def main() -> None:
        async with asyncio.timeout(60), world() as made:
            made.ask("greedy", 80)
            await until(lambda: made.served["greedy"] > 100, "one caller alone has all")
            made.ask("modest", 8)
            await until(lambda: made.served["modest"] > 10, "the other is served")
            before = made.served.copy()
            await until(lambda: made.served["modest"] - before["modest"] >= 300, "a good while", 30)
            greedy = made.served["greedy"] - before["greedy"]
            modest = made.served["modest"] - before["modest"]
            assert abs(greedy - modest) <= 0.1 * (greedy + modest), (greedy, modest)
            assert set(made.statuses) == {200}

    asyncio.run(main())


def test_who_fills_the_queue_keeps_nobody_out_of_it() -> None:
    async def main() -> None:
        async with asyncio.timeout(60), world(queue_requests_max=16) as made:
            made.ask("greedy", 80)
            await until(lambda: made.statuses[503] > 100, "the queue is full")
            made.ask("modest", 8)
            await until(lambda: made.served["modest"] > 10, "the other is served")
            before = made.served.copy()
            await until(lambda: made.served["modest"] - before["modest"] >= 200, "a good while", 30)
            greedy = made.served["greedy"] - before["greedy"]
            modest = made.served["modest"] - before["modest"]
            assert 0.8 < modest / greedy < 1.25, (greedy, modest)

    asyncio.run(main())


def test_a_higher_priority_has_ten_starts_for_one_of_the_lower() -> None:
    async def main() -> None:
        async with asyncio.timeout(60), world() as made:
            made.ask("low", 20)
            made.ask("high", 20)
            await until(lambda: made.served["high"] > 50, "both are served")
            before = made.served.copy()
            await until(lambda: made.served["low"] - before["low"] >= 20, "the lower one is not forgotten", 30)
            high, low = (made.served[each] - before[each] for each in ("high", "low"))
            assert 8 <= high / low <= 12, (high, low)

    asyncio.run(main())


def test_room_that_nobody_has_noticed_yet_is_for_those_that_wait_and_not_for_who_comes() -> None:
    async def main() -> None:
        gate = Gate()
        service = Service(Limits())  # it does not sweep: nothing looks for room by itself
        engine = await Engine(gate.script).start()
        route = limited(model("m", engine), 1)
        service.apply(RouteTable(version=TableVersion("e", 1), models=[route]))
        listener = await asyncio.get_running_loop().create_server(service.accept, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        clients = []
        for count, name in enumerate(("first", "second")):
            clients.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
            clients[-1].send(post(named(name)))
            await until(lambda count=count: service.table.queued() == ({"m": count} if count else {}), "it waits")
            await until(lambda: gate.bodies, "one is with the engine")
        admission = service.table.models["m"].admission
        (endpoint,) = service.table.models["m"].endpoints
        endpoint.concurrency = 2
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
        clients[-1].send(post(named("third")))
        await until(lambda: admission.waiting == 2, "the third waits as well")
        admission.look(asyncio.get_running_loop().time())
        await until(lambda: len(gate.bodies) == 2, "another is with the engine")
        assert gate.bodies == ["first", "second"]
        for client in clients:
            await until(lambda: gate.running, "one is with the engine")
            gate.answer()
            assert (await client.answer()).status == 200
            client.close()
        listener.close()
        engine.kill()

    asyncio.run(main())
