"""Keys whose requests wait for an engine to have room: revoked, limited and refused meanwhile."""

from __future__ import annotations

import asyncio

from llmgw.messages.routes import ModelRoute
from tests.router.support import Answer, Fleet, hang, model, until
from tests.router.test_key_answers import KEY, OTHER, error, key, tell, with_key
from tests.router.test_queueing import Gate, limited, named, queued


async def behind_one(fleet: Fleet, **fields: object) -> tuple[Gate, ModelRoute, asyncio.Task[Answer]]:
    """The model `m` on an engine that takes one request, and has one of the other key."""
    gate = Gate()
    route = limited(model("m", await fleet.engine(gate.script), **fields), 1)
    await tell(fleet, [key(), key(OTHER, "k2")], route)
    first = asyncio.create_task(fleet.ask(with_key(OTHER, named("first"))))
    await until(lambda: gate.running, "the first is with the engine")
    return gate, route, first


def test_what_waits_of_a_key_that_is_revoked_is_refused_at_once_and_the_others_go_on(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        gate, route, first = await behind_one(fleet)
        stolen = [asyncio.create_task(fleet.ask(with_key(KEY, named("stolen")))) for _ in range(5)]
        await queued(fleet, 5)
        honest = asyncio.create_task(fleet.ask(with_key(OTHER, named("honest"))))
        await queued(fleet, 6)
        await tell(fleet, [key(OTHER, "k2")], route)
        for answer in await asyncio.gather(*stolen):
            assert (answer.status, error(answer)["code"]) == (401, "invalid_api_key")
        for _ in range(2):
            await until(lambda: gate.running, "one is with the engine")
            gate.answer()
        assert [(await each).status for each in (first, honest)] == [200, 200]
        assert gate.bodies == ["first", "honest"]

    play(scenario)


def test_what_a_revoked_key_has_with_an_engine_goes_on_also_to_another_engine(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        dying, gate = await fleet.engine(hang), Gate()
        engines = [dying, await fleet.engine(gate.script)]
        route = limited(model("m", *engines), 1)
        await tell(fleet, [key(), key(OTHER, "k2")], route)
        both = [asyncio.create_task(fleet.ask(with_key(KEY, named("runs")))) for _ in range(2)]
        await until(lambda: gate.running and dying.requests, "both are with engines")
        dying.kill()
        await queued(fleet, 1)
        await tell(fleet, [key(OTHER, "k2")], route)
        for _ in range(2):
            await until(lambda: gate.running, "one is with the engine")
            gate.answer()
        assert [(await each).status for each in both] == [200, 200]

    play(scenario)


def test_what_waits_for_a_model_that_the_key_may_not_have_any_more_is_refused(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        gate, route, first = await behind_one(fleet)
        waiting = asyncio.create_task(fleet.ask(with_key(KEY, named("late"))))
        await queued(fleet, 1)
        await tell(fleet, [key(models=["m"]), key(OTHER, "k2")], route)
        assert not waiting.done()
        await tell(fleet, [key(models=["other"]), key(OTHER, "k2")], route)
        refused = await waiting
        assert (refused.status, error(refused)["code"]) == (403, "model_not_allowed")
        gate.answer()
        assert (await first).status == 200
        assert gate.bodies == ["first"]

    play(scenario)


def test_what_no_engine_was_asked_for_does_not_count_as_a_request_of_the_key(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        gate, route, first = await behind_one(fleet, queue_requests_max=1, queue_timeout_s=2.0)
        nowhere = model("nowhere")
        await tell(fleet, [key(requests_per_minute=2), key(OTHER, "k2")], route, nowhere)
        waiting = asyncio.create_task(fleet.ask(with_key(KEY, named("waits"))))
        await queued(fleet, 1)
        codes = [error(await fleet.ask(with_key(KEY, named("late"))))["code"] for _ in range(5)]
        assert codes == ["queue_full"] * 5
        assert error(await waiting)["code"] == "queue_timeout"
        for _ in range(5):
            assert error(await fleet.ask(with_key(KEY, b'{"model":"nowhere"}')))["code"] == "model_not_ready"
        gate.answer()
        assert (await first).status == 200
        left = []
        for _ in range(2):
            asking = asyncio.create_task(fleet.ask(with_key(KEY)))
            await until(lambda: gate.running, "it is with the engine")
            gate.answer()
            left.append((await asking).headers["x-ratelimit-remaining-requests"])
        assert left == ["1", "0"]
        assert error(await fleet.ask(with_key(KEY)))["code"] == "requests_per_minute_exceeded"

    play(scenario)


def test_who_comes_to_a_queue_and_leaves_it_has_had_its_request(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        gate, route, first = await behind_one(fleet)
        await tell(fleet, [key(requests_per_minute=3), key(OTHER, "k2")], route)
        for _ in range(3):
            client = await fleet.client()
            client.send(with_key(KEY))
            await queued(fleet, 1)
            client.close()
            await queued(fleet, 0)
        assert error(await fleet.ask(with_key(KEY)))["code"] == "requests_per_minute_exceeded"
        gate.answer()
        assert (await first).status == 200

    play(scenario)
