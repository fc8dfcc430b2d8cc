"""A router process that asks for keys: what clients get, what engines see, what is told, what is on disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import time

import msgspec
import pytest

from llmgw.messages.routes import KeyRoute, KeyShare, ModelRoute, RouterShare, RouteTable, TableVersion
from tests.router.support import Answer, Fleet, chunk, fleet_of, hang, model, plain, post, until

KEY = "llmgw-0123456789-" + "s" * 43
OTHER = "llmgw-aaaaaaaaaa-" + "t" * 43
LOCAL = b"GET %b HTTP/1.1\r\nhost: gw\r\n%b\r\n"


def key(secret: str = KEY, id: str = "k1", **fields: object) -> KeyRoute:
    return KeyRoute(id=id, hash=hashlib.sha256(secret.encode()).digest(), **fields)  # type: ignore[arg-type]


async def tell(fleet: Fleet, keys: list[KeyRoute], *models: ModelRoute, required: bool = True) -> None:
    """Send a table with keys and wait until the router goes by it."""
    fleet.number += 1
    version = TableVersion(fleet.epoch, fleet.number)
    fleet.link.send_table(RouteTable(version=version, models=list(models), keys=keys, keys_required=required))
    await until(lambda: any(frame.acked == version for frame in fleet.telemetry), "the table is acknowledged")


def with_key(secret: str = KEY, body: bytes = b'{"model":"m"}', more: bytes = b"") -> bytes:
    return post(body, headers=b"authorization: Bearer %b\r\n%b" % (secret.encode(), more))


def error(answer: Answer) -> dict[str, str]:
    found: dict[str, str] = json.loads(answer.body)["error"]
    return found


def test_a_key_opens_the_gateway_and_reaches_no_engine(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(plain(b"good"))
        await tell(fleet, [key()], model("m", engine))
        for header in (b"authorization: Bearer %b\r\n", b"x-api-key: %b\r\n", b"api-key: %b\r\n"):
            answer = await fleet.ask(post(headers=header % KEY.encode()))
            assert answer.body == b"good"
        for seen in engine.requests:
            assert not {"authorization", "x-api-key", "api-key"} & seen.headers.keys()
        assert {outcome.key for outcome in fleet.outcomes} <= {"k1"}

        refused = await fleet.ask(post())
        assert (refused.status, error(refused)["code"]) == (401, "missing_api_key")
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert refused.headers["x-request-id"]
        wrong = await fleet.ask(with_key(OTHER))
        assert (wrong.status, error(wrong)["code"], error(wrong)["type"]) == (
            401,
            "invalid_api_key",
            "authentication_error",
        )
        assert OTHER.encode() not in wrong.body
        assert len(engine.requests) == 3
        await until(lambda: len(fleet.outcomes) == 5, "all outcomes")
        assert [(each.key, each.status) for each in fleet.outcomes[3:]] == [("", 401), ("", 401)]
        assert OTHER not in fleet.router.log_path.read_text()

    play(scenario)


def test_a_refused_connection_stays_and_the_next_request_over_it_may_have_a_key(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(plain(b"good"))
        await tell(fleet, [key()], model("m", engine))
        client = await fleet.client()
        large = b'{"model":"m","x":"' + b"y" * 3_000_000 + b'"}'
        for request, status in (
            (post(large), 401),
            (with_key(body=large), 200),
            (with_key(OTHER), 401),
            (with_key(), 200),
            (post(), 401),
        ):
            client.send(request)
            assert (await client.answer()).status == status

    play(scenario)


def test_strangers_may_ask_whether_it_lives_and_nothing_else(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await tell(fleet, [key()], model("m"))
        assert (await fleet.ask(LOCAL % (b"/health", b""))).status == 200
        options = b"OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: gw\r\n\r\n"
        client = await fleet.client()
        client.send(options)
        assert (await client.answer(bodiless=True)).status == 204
        for path in (b"/v1/models", b"/v1/models/m"):
            assert (await fleet.ask(LOCAL % (path, b""))).status == 401
            assert (await fleet.ask(LOCAL % (path, b"x-api-key: " + KEY.encode() + b"\r\n"))).status == 200

    play(scenario)


def test_a_key_sees_and_gets_its_own_models_by_whatever_name(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(plain(b"good"))
        routes = [model("org/a", engine, aliases=["a"]), model("b", engine)]
        await tell(fleet, [key(models=["org/a"]), key(OTHER, "k2")], *routes)

        async def listed(secret: str) -> list[str]:
            answer = await fleet.ask(LOCAL % (b"/v1/models", b"api-key: " + secret.encode() + b"\r\n"))
            return [entry["id"] for entry in json.loads(answer.body)["data"]]

        assert await listed(KEY) == ["a", "org/a"]
        assert await listed(OTHER) == ["a", "b", "org/a"]
        for name in (b"a", b"org/a"):
            assert (await fleet.ask(with_key(body=b'{"model":"%b"}' % name))).status == 200
        refused = await fleet.ask(with_key(body=b'{"model":"b"}'))
        assert (refused.status, error(refused)["code"]) == (403, "model_not_allowed")
        assert "it may use org/a" in error(refused)["message"]
        unknown = await fleet.ask(with_key(body=b'{"model":"none"}'))
        assert unknown.status == 404
        assert "the models here are: a, org/a." in error(unknown)["message"]
        one = await fleet.ask(LOCAL % (b"/v1/models/b", b"api-key: " + KEY.encode() + b"\r\n"))
        assert one.status == 404

    play(scenario)


def test_limits_refuse_with_a_429_that_says_when_and_what_is_left(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(plain(b"good"))
        await tell(fleet, [key(requests_per_minute=3)], model("m", engine))
        for left in ("2", "1", "0"):
            answer = await fleet.ask(with_key())
            assert answer.status == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "3"
            assert answer.headers["x-ratelimit-remaining-requests"] == left
        refused = await fleet.ask(with_key())
        assert (refused.status, error(refused)["type"]) == (429, "rate_limit_error")
        assert error(refused)["code"] == "requests_per_minute_exceeded"
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert len(engine.requests) == 3
        await until(
            lambda: sum(frame.keys["k1"].requests for frame in fleet.telemetry if frame.keys) == 4, "demand"
        )
        last = [frame.keys["k1"] for frame in fleet.telemetry if frame.keys][-1]
        assert last.requests_left is not None
        assert last.requests_left < 1

    play(scenario)


def test_an_engines_own_rates_do_not_stand_beside_the_keys(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(plain(b"good", headers=b"x-ratelimit-limit-requests: 7\r\n"))
        await tell(fleet, [key(requests_per_minute=100), key(OTHER, "k2")], model("m", engine))
        assert (await fleet.ask(with_key())).headers["x-ratelimit-limit-requests"] == "100"
        assert (await fleet.ask(with_key(OTHER))).headers["x-ratelimit-limit-requests"] == "7"

    play(scenario)


def test_requests_at_a_time_count_until_they_are_over_however_they_end(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(hang)
        good = await fleet.engine(plain(b"good"))
        limited = [key(concurrency=2)]
        await tell(fleet, limited, model("m", engine), model("g", good), model("gone", 1))
        waiting = [await fleet.client() for _ in range(2)]
        for client in waiting:
            client.send(with_key())
        await until(lambda: len(engine.requests) == 2, "both are with the engine")
        ask_good = with_key(body=b'{"model":"g"}')
        refused = await fleet.ask(ask_good)
        assert error(refused)["code"] == "concurrency_exceeded"
        waiting[0].close()
        await until(
            lambda: engine.requests[0].closed.is_set() or engine.requests[1].closed.is_set(), "it is let go"
        )
        client = await fleet.client()
        for body, status in ((b'{"model":"g"}', 200), (b'{"model":"gone"}', 502), (b'{"model":"g"}', 200)):
            for _ in range(3):
                client.send(with_key(body=body))
                assert (await client.answer()).status == status
        refused = await fleet.ask(with_key(body=b'{"model":"nothing"}'))
        assert refused.status == 404
        bad_path = post(b'{"model":"g"}', path="/v1/../x", headers=b"api-key: " + KEY.encode() + b"\r\n")
        for _ in range(3):
            assert (await fleet.ask(bad_path)).status == 404
        assert (await fleet.ask(ask_good)).status == 200, "none of them is counted as running still"

    play(scenario)


def test_a_revoked_key_ends_at_once_on_connections_that_stand_and_what_it_runs_goes_on(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        go_on = asyncio.Event()

        async def script(seen, reader, writer) -> None:
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            writer.write(chunk(b"data: 1\n\n"))
            await go_on.wait()
            writer.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

        engine = await fleet.engine(script)
        good = await fleet.engine(plain(b"good"))
        models = [model("m", engine), model("g", good)]
        await tell(fleet, [key(), key(OTHER, "k2")], *models)
        stands, streams = await fleet.client(), await fleet.client()
        stands.send(with_key(body=b'{"model":"g"}'))
        assert (await stands.answer()).status == 200
        streams.send(with_key(body=b'{"model":"m","stream":true}'))
        await streams.head()
        await tell(fleet, [key(OTHER, "k2")], *models)
        stands.send(with_key(body=b'{"model":"g"}'))
        assert error(await stands.answer())["code"] == "invalid_api_key"
        go_on.set()
        assert (await streams.reader.readuntil(b"0\r\n\r\n")).endswith(chunk(b"data: 2\n\n") + b"0\r\n\r\n")
        assert (await fleet.ask(with_key(OTHER, b'{"model":"g"}'))).status == 200

    play(scenario)


def test_an_expired_key_is_refused_without_anybody_saying_so(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(plain(b"good"))
        await tell(fleet, [key(expires_at_s=time.time() + 0.5)], model("m", engine))
        client = await fleet.client()
        codes = []
        async with asyncio.timeout(10):
            while "expired_api_key" not in codes:
                client.send(with_key())
                answer = await client.answer()
                codes.append("" if answer.status == 200 else error(answer)["code"])
        assert codes[0] == ""
        assert set(codes) == {"", "expired_api_key"}

    play(scenario)


@pytest.mark.parametrize(
    "lines",
    [
        b"authorization: Bearer \r\n",
        b"authorization: Bearer " + b"k" * 60_000 + b"\r\n",
        b"authorization: Bearer \xff\xfe\xc3\xbc\r\n",
        b"authorization: Bearer " + KEY.encode() + b"\r\nauthorization: Bearer " + OTHER.encode() + b"\r\n",
        b"authorization: Bearer " + KEY.encode() + b"\r\nx-api-key: " + OTHER.encode() + b"\r\n",
        b"authorization: " + KEY.encode() + b"\r\n",
        b"authorization: Digest username=" + KEY.encode() + b"\r\n",
        b"cookie: key=" + KEY.encode() + b"\r\n",
        b"x-api-key : " + KEY.encode() + b"\r\n",
    ],
)
def test_hostile_credentials_get_a_sentence_that_repeats_nothing(play, lines: bytes) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(plain(b"good"))
        await tell(fleet, [key(), key(OTHER, "k2")], model("m", engine))
        answer = await fleet.ask(post(headers=lines))
        assert answer.status in (400, 401)
        assert error(answer)["message"].endswith(".")
        assert KEY.encode() not in answer.body
        assert b"kkkk" not in answer.body
        assert not engine.requests
        assert (await fleet.ask(with_key())).body == b"good"

    play(scenario)


def test_strangers_cannot_fill_the_memory_for_bodies(new_router) -> None:
    async def main() -> None:
        async with fleet_of(new_router("--body-bytes-max=67108864")) as fleet:
            engine = await fleet.engine(plain(b"good"))
            await tell(fleet, [key()], model("m", engine))
            part = b"x" * 1_000_000
            strangers = [await fleet.client() for _ in range(24)]
            before = fleet.router.rss_mib()
            for client in strangers:
                client.send(b"POST /v1/x HTTP/1.1\r\nhost: gw\r\ncontent-length: 60000000\r\n\r\n" + part * 20)
            await asyncio.gather(*(client.writer.drain() for client in strangers))
            assert (await fleet.ask(with_key())).body == b"good"
            assert fleet.router.rss_mib() - before < 100, "480 MB were sent"

    asyncio.run(main())


def test_a_router_that_starts_from_disk_still_knows_the_keys_and_has_no_key_itself(new_router) -> None:
    async def main() -> None:
        router = await new_router().serving()
        async with fleet_of(router) as fleet:
            engine = await fleet.engine(plain(b"good"))
            await tell(fleet, [key(requests_per_minute=100)], model("m", engine))
            path = router.state / "routes.msgpack"

            def written() -> bool:
                return path.exists() and msgspec.msgpack.decode(path.read_bytes(), type=RouteTable).keys != []

            await until(written, "the table is on disk")
            assert (await fleet.ask(with_key())).status == 200
            assert KEY.encode() not in path.read_bytes()
            await fleet.unlink()
            router.process.send_signal(signal.SIGKILL)
            router.process.wait()
            await new_router(listen=f"127.0.0.1:{router.port}").serving()
            assert (await fleet.ask(with_key())).body == b"good"
            assert (await fleet.ask(post())).status == 401
            assert (await fleet.ask(with_key(OTHER))).status == 401

    asyncio.run(main())


def test_a_share_that_is_told_holds_also_without_the_control_process(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(hang)
        good = await fleet.engine(plain(b"good"))
        limited = key(concurrency=10, requests_per_minute=600)
        await tell(fleet, [limited], model("m", engine), model("g", good))
        share = KeyShare(concurrency=3, requests_per_minute=60.0)
        fleet.link.send_share(RouterShare(workers=2, keys={"k1": share}))
        left = 600
        async with asyncio.timeout(10):
            while left >= 60:
                answer = await fleet.ask(with_key(body=b'{"model":"g"}'))
                left = int(answer.headers["x-ratelimit-remaining-requests"])
        await fleet.unlink()
        for count in (1, 2, 3):
            client = await fleet.client()
            client.send(with_key())
            await until(lambda: len(engine.requests) == count, "it is with the engine")  # noqa: B023
        refused = await fleet.ask(with_key())
        assert error(refused)["code"] == "concurrency_exceeded"
        assert len(engine.requests) == 3

    play(scenario)
