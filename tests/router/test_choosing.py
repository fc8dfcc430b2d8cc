"""Concurrency, affinity, budget and breakers through a real router."""

from __future__ import annotations

import asyncio
import json

import msgspec

from llmgw.messages.routes import ModelRoute
from tests.router.support import Fleet, Seen, hang, model, plain, post, raw, until


def limited(route: ModelRoute, concurrency: int) -> ModelRoute:
    endpoints = [msgspec.structs.replace(each, concurrency=concurrency) for each in route.endpoints]
    return msgspec.structs.replace(route, endpoints=endpoints)


def chat(*texts: str) -> bytes:
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": "Be brief. " * 50}]
    messages += [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    return json.dumps({"model": "m", "messages": messages}).encode()


def test_no_engine_has_more_requests_than_it_may_have_and_the_next_client_is_told_when_to_come_back(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        go_on = asyncio.Event()

        async def wait(seen: Seen, reader, writer) -> None:
            await go_on.wait()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood")

        engines = [await fleet.engine(wait) for _ in range(2)]
        await fleet.route(limited(model("m", *engines, queue_requests_max=0), 2))
        waiting = [asyncio.create_task(fleet.ask(post())) for _ in range(4)]
        await until(lambda: sum(len(engine.requests) for engine in engines) == 4, "four requests are running")
        assert [len(engine.requests) for engine in engines] == [2, 2]
        answer = await fleet.ask(post())
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        error = json.loads(answer.body)["error"]
        assert error["code"] == "overloaded"
        assert "All engines of the model 'm'" in error["message"]
        go_on.set()
        assert {(await each).body for each in waiting} == {b"good"}
        assert (await fleet.ask(post())).body == b"good"

    play(scenario)


def test_conversations_come_back_to_their_engine_and_are_spread(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engines = await fleet.serve(*[plain()] * 4, prefix_affinity=True)
        homes = {}
        for number in range(24):
            homes[number] = (await fleet.ask(post(chat(f"question {number}")))).headers["x-llmgw-replica"]
        assert len(set(homes.values())) >= 3
        for number in range(24):
            turn = chat(f"question {number}", "an answer", "and then?")
            assert (await fleet.ask(post(turn))).headers["x-llmgw-replica"] == homes[number]
        named = [
            (await fleet.ask(post(chat(f"anything {number}"), headers=b"X-Session-Id: s-7 \r\n"))).headers
            for number in range(6)
        ]
        assert len({headers["x-llmgw-replica"] for headers in named}) == 1
        assert {
            seen.headers["x-session-id"]
            for engine in engines
            for seen in engine.requests[-1:]
            if "x-session-id" in seen.headers
        } == {"s-7"}

    play(scenario)


def test_without_affinity_a_conversation_goes_anywhere(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(*[plain()] * 4)
        homes = {(await fleet.ask(post(chat("one question")))).headers["x-llmgw-replica"] for _ in range(40)}
        assert len(homes) > 1

    play(scenario)


def test_one_conversation_that_all_ask_at_once_stays_within_its_engines_share(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engines = await fleet.serve(*[hang] * 4, prefix_affinity=True)
        for _ in range(16):
            (await fleet.client()).send(post(chat("the same question")))
        await until(lambda: sum(len(engine.requests) for engine in engines) == 16, "all are running")
        assert max(len(engine.requests) for engine in engines) <= 5

    play(scenario)


def test_a_conversation_whose_engine_is_gone_is_answered_elsewhere(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engines = await fleet.serve(*[plain(b"good")] * 3, prefix_affinity=True)
        home = (await fleet.ask(post(chat("q")))).headers["x-llmgw-replica"]
        engines[int(home[-1])].kill()
        for _ in range(8):
            answer = await fleet.ask(post(chat("q")))
            assert answer.body == b"good"
            assert answer.headers["x-llmgw-replica"] != home

    play(scenario)


def test_retries_end_where_their_budget_does(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engines = await fleet.serve(raw(abort=True), raw(abort=True))
        asked = 0
        while not any(outcome.retry_refused for outcome in fleet.outcomes):
            assert (await fleet.ask(post())).status == 502
            asked += 1
            assert asked < 200
        for _ in range(20):
            await fleet.ask(post())
        asked += 20
        sent = sum(len(engine.requests) for engine in engines)
        assert asked < sent <= asked * 1.2 + 20 + 15, "a fifth more, the reserve, and some seconds' refill"
        assert sent < asked * 1.9

    play(scenario)


def test_the_control_process_hears_of_breakers_that_are_open(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain(b"no", 500))
        for _ in range(2):
            assert (await fleet.ask(post())).status == 500
        await until(lambda: len(fleet.outcomes) == 2, "two outcomes")
        assert not any(frame.breakers for frame in fleet.telemetry)
        assert (await fleet.ask(post())).status == 500, "the third failure in a row opens it"
        await until(lambda: fleet.telemetry[-1].breakers == {"m-0": "open"}, "it is open")
        assert (await fleet.ask(post())).status == 500, "it is the least bad one"
        await until(lambda: fleet.telemetry[-1].breakers == {"m-0": "half_open"}, "it may be probed")
        engine.script = plain(b"good")
        assert (await fleet.ask(post())).body == b"good"
        await until(lambda: not fleet.telemetry[-1].breakers, "it is closed")

    play(scenario)


def test_an_engine_that_dies_of_a_request_over_a_kept_connection_counts_as_dead(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        died = []
        engines = []

        async def dies_of_poison(seen: Seen, reader, writer) -> None:
            if b"poison" not in seen.body:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood")
                return
            engine = next(each for each in engines if seen in each.requests)
            died.append(engine)
            engine.kill()

        engines += await fleet.serve(*[dies_of_poison] * 5)
        # Each has a kept connection, which is what makes its end look like that of an idle one.
        while not all(engine.requests for engine in engines):
            assert (await fleet.ask(post())).body == b"good"
        answer = await fleet.ask(post(b'{"model":"m","x":"poison"}'))
        assert answer.status == 502
        assert len(died) == 2, "never a third after two died on the same request"

    play(scenario)
