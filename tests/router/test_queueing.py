"""Requests that wait for an engine to have room, through a real router."""

from __future__ import annotations

import asyncio
import json
import time

import msgspec

from llmgw.messages.routes import ModelRoute, RouterShare
from tests.router.support import Answer, Fleet, Seen, chunk, model, plain, post, until


def limited(route: ModelRoute, concurrency: int) -> ModelRoute:
    endpoints = [msgspec.structs.replace(each, concurrency=concurrency) for each in route.endpoints]
    return msgspec.structs.replace(route, endpoints=endpoints)


class Gate:
    """An engine that answers each request when it is told to, and notes what it was sent, in order."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.most = 0
        self._open: list[asyncio.Event] = []

    async def script(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened = asyncio.Event()
        self._open.append(opened)
        self.bodies.append(json.loads(seen.body).get("x", ""))
        self.most = max(self.most, self.running)
        await opened.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood")

    @property
    def running(self) -> int:
        return len(self._open)

    def answer(self, count: int = 1) -> None:
        for opened in self._open[:count]:
            opened.set()
        del self._open[:count]


def named(x: str, **fields: object) -> bytes:
    return json.dumps({"model": "m", "x": x, **fields}).encode()


async def behind_one(
    fleet: Fleet, *, engines: int = 1, **fields: object
) -> tuple[list[Gate], asyncio.Task[Answer]]:
    """The model `m` on engines that take one request each, and a request that is with one of them."""
    gates = [Gate() for _ in range(engines)]
    await fleet.route()  # what the router found out of an earlier test's `m` goes with it
    await fleet.route(limited(model("m", *[await fleet.engine(gate.script) for gate in gates], **fields), 1))
    first = asyncio.create_task(fleet.ask(post(named("first"))))
    await until(lambda: any(gate.running for gate in gates), "the first is with an engine")
    return gates, first


async def queued(fleet: Fleet, count: int) -> None:
    await until(lambda: fleet.telemetry and fleet.telemetry[-1].queued.get("m", 0) == count, f"{count} wait")


def error(answer: Answer) -> dict[str, str]:
    return json.loads(answer.body)["error"]


def test_requests_wait_for_room_and_go_in_order(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (gate,), first = await behind_one(fleet)
        waiting = []
        for number in range(5):
            waiting.append(asyncio.create_task(fleet.ask(post(named(str(number))))))
            await queued(fleet, number + 1)
        for _ in range(6):
            await until(lambda: gate.running, "one is with the engine")
            gate.answer()
        assert [(await each).body for each in (first, *waiting)] == [b"good"] * 6
        assert gate.bodies == ["first", "0", "1", "2", "3", "4"]
        assert gate.most == 1
        await queued(fleet, 0)
        await until(lambda: len(fleet.outcomes) == 6, "all outcomes")
        waits = [outcome.queued_s for outcome in fleet.outcomes]
        assert waits[0] == 0
        assert all(0 < wait < 30 for wait in waits[1:])

    play(scenario)


def test_a_full_queue_says_so_and_when_to_come_back(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (gate,), first = await behind_one(fleet, queue_requests_max=2)
        waiting = [asyncio.create_task(fleet.ask(post(named("w")))) for _ in range(2)]
        await queued(fleet, 2)
        refused = await fleet.ask(post(named("late")))
        assert refused.status == 503
        assert error(refused)["code"] == "queue_full"
        assert error(refused)["type"] == "service_unavailable"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        for _ in range(3):
            await until(lambda: gate.running, "one is with the engine")
            gate.answer()
        assert [(await each).body for each in (first, *waiting)] == [b"good"] * 3
        assert "late" not in gate.bodies

    play(scenario)


def test_a_queue_holds_no_more_bytes_of_bodies_than_it_may(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (gate,), first = await behind_one(fleet, queue_bytes_max=100_000)
        waiting = asyncio.create_task(fleet.ask(post(named("w" * 200_000))))
        await queued(fleet, 1)  # one by itself may wait, whatever its size
        assert error(await fleet.ask(post(named("x" * 50_000))))["code"] == "queue_full"
        gate.answer()
        await until(lambda: gate.running == 1 and len(gate.bodies) == 2, "the large one is with the engine")
        after = asyncio.create_task(fleet.ask(post(named("x" * 50_000))))
        await queued(fleet, 1)
        gate.answer()
        await until(lambda: len(gate.bodies) == 3, "the next is with the engine")
        gate.answer()
        assert [(await each).status for each in (first, waiting, after)] == [200] * 3

    play(scenario)


def test_who_waits_too_long_is_told_and_the_others_go_on(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (gate,), first = await behind_one(fleet, queue_timeout_s=0.3)
        late = await fleet.ask(post(named("late")))
        assert (late.status, error(late)["code"]) == (503, "queue_timeout")
        assert int(late.headers["retry-after"]) >= 1
        waiting = asyncio.create_task(fleet.ask(post(named("next"))))
        await queued(fleet, 1)
        gate.answer()
        await until(lambda: gate.bodies == ["first", "next"], "the next is with the engine")
        gate.answer()
        assert [(await each).status for each in (first, waiting)] == [200, 200]
        await until(lambda: len(fleet.outcomes) == 3, "all outcomes")
        assert [each.queued_s >= 0.3 for each in fleet.outcomes if each.status == 503] == [True]

    play(scenario)


def test_what_could_not_start_in_time_is_refused_at_once(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (gate,), first = await behind_one(fleet, queue_timeout_s=3.0)
        waiting = [asyncio.create_task(fleet.ask(post(named(str(n))))) for n in range(2)]
        await queued(fleet, 2)
        await asyncio.sleep(0.8)  # what an engine takes for a request
        gate.answer()
        await until(lambda: len(gate.bodies) == 2, "the second is with the engine, after most of a second")
        asked_at = time.monotonic()
        more = [asyncio.create_task(fleet.ask(post(named("more")))) for _ in range(10)]
        await until(lambda: sum(task.done() for task in more) >= 6, "most are refused")
        assert time.monotonic() - asked_at < 1.0
        refused = [task.result() for task in more if task.done()]
        assert {(each.status, error(each)["code"]) for each in refused} == {(503, "queue_too_long")}
        assert all(1 <= int(each.headers["retry-after"]) <= 6 for each in refused)
        assert len(refused) < 10, "those for whom there is time wait"
        while not all(task.done() for task in (first, *waiting, *more)):
            gate.answer()
            await asyncio.sleep(0.01)
        assert (await waiting[0]).status == (await waiting[1]).status == 200

    play(scenario)


def test_a_client_that_leaves_the_queue_is_forgotten_at_once_and_costs_nobody_a_turn(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (gate,), first = await behind_one(fleet)
        leaver = await fleet.client()
        asked_at = time.monotonic()
        leaver.send(post(named("leaver")))
        await queued(fleet, 1)
        stayer = asyncio.create_task(fleet.ask(post(named("stayer"))))
        await queued(fleet, 2)
        left_at = time.monotonic()
        leaver.close()
        await until(lambda: any(outcome.status == 499 for outcome in fleet.outcomes), "it is said to have left")
        outcome = next(outcome for outcome in fleet.outcomes if outcome.status == 499)
        assert outcome.total_s < left_at - asked_at + 0.05
        assert outcome.total_s - outcome.queued_s < 0.05
        await queued(fleet, 1)
        gate.answer()
        await until(lambda: gate.bodies == ["first", "stayer"], "the other has its turn")
        gate.answer()
        assert [(await each).status for each in (first, stayer)] == [200, 200]

    play(scenario)


def test_clients_that_leave_while_queued_leave_nothing_behind(new_router) -> None:
    async def main() -> None:
        from tests.router.support import fleet_of

        # Of all routers' bodies this one may hold 16 MiB, and queue 12: forgotten bytes would end in refusals.
        router = new_router("--share-of=64", "--body-bytes-max=8388608")
        async with asyncio.timeout(30), fleet_of(router) as fleet:
            (gate,), first = await behind_one(fleet, queue_requests_max=6400, queue_bytes_max=3 * 256 * 1024**2)
            for _ in range(3):
                leavers = [await fleet.client() for _ in range(11)]
                for leaver in leavers:
                    leaver.send(post(named("x" * 1_000_000)))
                await queued(fleet, 11)
                for leaver in leavers:
                    leaver.close()
                await queued(fleet, 0)
            last = asyncio.create_task(fleet.ask(post(named("last"))))
            await queued(fleet, 1)
            gate.answer()
            await until(lambda: gate.bodies == ["first", "last"], "the last is with the engine")
            gate.answer()
            assert [(await each).status for each in (first, last)] == [200, 200]

    asyncio.run(main())


def test_a_connection_whose_request_waited_serves_the_next_one(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (gate,), first = await behind_one(fleet, queue_timeout_s=0.3)
        client = await fleet.client()
        client.send(post(named("waits in vain")) + post(named("pipelined")))
        assert (await client.answer()).status == 503
        await queued(fleet, 1)
        gate.answer()
        await until(lambda: gate.bodies == ["first", "pipelined"], "the pipelined one is with the engine")
        gate.answer()
        assert (await client.answer()).body == b"good"
        client.send(post(named("third")))
        await until(lambda: gate.running, "the third is with the engine")
        gate.answer()
        assert (await client.answer()).body == b"good"
        await first

    play(scenario)


def test_a_table_that_brings_an_engine_or_more_room_starts_who_waits(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (gate,), first = await behind_one(fleet)
        waiting = [asyncio.create_task(fleet.ask(post(named(str(n))))) for n in range(3)]
        await queued(fleet, 3)
        other = await fleet.engine(plain(b"other"))
        await fleet.route(limited(model("m", fleet.engines[0], other), 1))
        assert [(await each).body for each in waiting] == [b"other"] * 3
        gate.answer()
        assert (await first).body == b"good"

    play(scenario)


def test_a_larger_part_of_an_engine_starts_who_waits(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        gate = Gate()
        await fleet.route(limited(model("m", await fleet.engine(gate.script)), 8))
        fleet.link.send_share(RouterShare(workers=1, number=1, endpoints={"m-0": 2}))
        await until(lambda: fleet.telemetry and fleet.telemetry[-1].share == 1, "the share holds")
        asked = [asyncio.create_task(fleet.ask(post(named(str(n))))) for n in range(6)]
        await queued(fleet, 4)
        assert gate.running == 2
        fleet.link.send_share(RouterShare(workers=1, number=2, endpoints={"m-0": 5}))
        await until(lambda: gate.running == 5, "three more have started")
        await queued(fleet, 1)
        fleet.link.send_share(RouterShare(workers=2, number=3))
        await until(lambda: fleet.telemetry[-1].share == 3, "the share holds")
        gate.answer(1)
        await until(lambda: gate.running == 4, "one is answered, and four are what one of two workers may have")
        await queued(fleet, 1)
        while not all(task.done() for task in asked):
            gate.answer()
            await asyncio.sleep(0.01)
        fleet.link.send_share(RouterShare(workers=1, number=4))
        await until(lambda: fleet.telemetry[-1].share == 4, "the share holds")

    play(scenario)


def test_who_waits_for_engines_that_go_away_is_answered(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (gate,), first = await behind_one(fleet)
        waiting = asyncio.create_task(fleet.ask(post(named("w"))))
        await queued(fleet, 1)
        await fleet.route(ModelRoute(name="m", reason="its replicas are starting", retry_after_s=7))
        answer = await waiting
        assert (answer.status, error(answer)["code"]) == (503, "model_not_ready")
        assert answer.headers["retry-after"] == "7"
        gate.answer()
        assert (await first).body == b"good"

    play(scenario)


def test_who_waits_for_a_model_that_is_removed_is_told(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (gate,), first = await behind_one(fleet)
        waiting = asyncio.create_task(fleet.ask(post(named("w"))))
        await queued(fleet, 1)
        await fleet.route(model("another", fleet.engines[0]))
        answer = await waiting
        assert (answer.status, error(answer)["code"]) == (404, "model_not_found")
        gate.answer()
        assert (await first).body == b"good"

    play(scenario)


def test_a_request_whose_engine_died_goes_before_those_that_wait(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        gates, first = await behind_one(fleet, engines=2)
        second = asyncio.create_task(fleet.ask(post(named("second"))))
        await until(lambda: all(gate.running for gate in gates), "both engines are busy")
        waiting = asyncio.create_task(fleet.ask(post(named("waits"))))
        await queued(fleet, 1)
        dead = next(at for at, gate in enumerate(gates) if gate.bodies == ["second"])
        left = gates[1 - dead]
        fleet.engines[dead].kill()
        # The one that waited is sent to the dead engine in its place, and comes back as it did.
        await queued(fleet, 2)
        left.answer()
        await until(lambda: left.bodies == ["first", "second"], "the engine that is left has the retry")
        left.answer()
        await until(lambda: left.bodies == ["first", "second", "waits"], "then what waited")
        left.answer()
        assert [(await each).body for each in (first, second, waiting)] == [b"good"] * 3
        await until(lambda: len(fleet.outcomes) == 3, "all outcomes")
        assert sorted(outcome.retries for outcome in fleet.outcomes) == [0, 1, 1]

    play(scenario)


def test_who_waits_for_another_engine_holds_up_nobody_that_can_use_this_one(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        gate = Gate()
        fine = await fleet.engine(gate.script)
        poison = await fleet.engine(plain(b"good"))
        answers = poison.script

        async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if b"poison" in seen.body:
                writer.transport.abort()
            else:
                await answers(seen, reader, writer)

        poison.script = script
        await fleet.route(limited(model("m", fine), 1))
        first = asyncio.create_task(fleet.ask(post(named("first"))))
        await until(lambda: gate.running, "the one engine is full")
        await fleet.route(limited(model("m", fine, poison), 1))
        again = asyncio.create_task(fleet.ask(post(named("poison"))))
        await queued(fleet, 1)
        asked_at = time.monotonic()
        for _ in range(20):
            assert (await fleet.ask(post(named("x")))).body == b"good"
        assert time.monotonic() - asked_at < 1.0, "none of them had to wait"
        gate.answer()
        await until(lambda: gate.bodies == ["first", "poison"], "then it has its turn")
        gate.answer()
        assert [(await each).status for each in (first, again)] == [200, 200]

    play(scenario)


def test_a_breaker_that_lets_a_request_try_starts_who_waits(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        gate = Gate()
        bad = await fleet.engine(plain(b"no", 500))
        await fleet.route(limited(model("m", bad), 1))
        for _ in range(3):
            assert (await fleet.ask(post())).status == 500
        await until(lambda: fleet.telemetry[-1].breakers == {"m-0": "open"}, "it is open")
        bad.script = plain(b"well again")
        good = await fleet.engine(gate.script)
        await fleet.route(limited(model("m", bad, good), 1))
        first = asyncio.create_task(fleet.ask(post(named("first"))))
        await until(lambda: gate.running, "the healthy one is full")
        assert (await fleet.ask(post(named("second")))).body == b"well again"
        await until(lambda: any(outcome.queued_s for outcome in fleet.outcomes), "it waited for that")
        gate.answer()
        assert (await first).body == b"good"

    play(scenario)


def test_a_stream_holds_its_place_until_its_end(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        end = asyncio.Event()

        async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"one"))
            await end.wait()
            writer.write(chunk(b"two") + b"0\r\n\r\n")

        await fleet.route(limited(model("m", await fleet.engine(script)), 1))
        client = await fleet.client()
        client.send(post())
        await client.head()
        waiting = asyncio.create_task(fleet.ask(post()))
        await queued(fleet, 1)
        assert len(fleet.engines[0].requests) == 1
        end.set()
        assert (await waiting).body == b"onetwo"

    play(scenario)
