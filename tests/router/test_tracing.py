"""A span for each request, from a real router to a collector: what is in it, and that nobody waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.messages.routes import RouteEndpoint
from tests.router.collector import Collector, collecting
from tests.router.support import (
    EVENT_STREAM,
    Fleet,
    RouterProcess,
    Seen,
    chunk,
    fleet_of,
    model,
    plain,
    post,
    raw,
    until,
)

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
USAGE = b'{"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":3}}}'
SECRET = "collector-secret"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[RouterProcess]:
    folder = tmp_path_factory.mktemp("traced")
    headers = folder / "collector.headers"
    headers.write_text(f"# who we are\nX-Api-Key: {SECRET}\n")
    headers.chmod(0o600)
    process = RouterProcess(
        folder / "state",
        f"--trace-endpoint={collector.url}",
        f"--trace-headers-file={headers}",
        "--trace-sample=1",
        "--connect-timeout-s=0.5",
    )
    yield process
    process.stop()


@pytest.fixture
def play(traced: RouterProcess, collector: Collector) -> Callable[[Callable[[Fleet], Awaitable[None]]], None]:
    def run(scenario: Callable[[Fleet], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(40), fleet_of(traced) as fleet:
                collector.spans.clear()
                await scenario(fleet)

        asyncio.run(main())

    return run


async def spans(collector: Collector, count: int = 1) -> list[dict[str, Any]]:
    await until(lambda: len(collector.spans) >= count, f"{count} spans")
    return collector.spans


def names(span: dict[str, Any]) -> list[str]:
    return [name for name, _, _ in span["events"]]


def test_a_request_is_a_span_that_continues_its_clients_trace_and_goes_on_in_the_engine(
    play: Any, collector: Collector
) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain(USAGE))
        before = time.time()
        given = f"traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: a=1\r\nx-request-id: mine\r\n".encode()
        assert (await fleet.ask(post(headers=given))).status == 200
        (span,) = await spans(collector)
        assert (span["name"], span["kind"]) == ("POST /v1/chat/completions", 2)
        assert (span["trace"], span["parent"]) == (TRACE, PARENT)
        assert engine.requests[0].headers["traceparent"] == f"00-{TRACE}-{span['span']}-01"
        assert engine.requests[0].headers["tracestate"] == "a=1"
        assert before - 1 < span["began"] < time.time() + 1
        attributes = span["attributes"]
        connect_s = attributes.pop("llmgw.connect_s")
        first_byte_s = attributes.pop("gen_ai.response.time_to_first_chunk")
        assert 0 < connect_s < first_byte_s <= span["took_s"] + 0.001
        assert attributes == {
            "http.request.method": "POST",
            "http.route": "/v1/chat/completions",
            "url.path": "/v1/chat/completions",
            "http.response.status_code": 200,
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m",
            "gen_ai.request.stream": False,
            "gen_ai.usage.input_tokens": 9,
            "gen_ai.usage.cache_read.input_tokens": 3,
            "gen_ai.usage.output_tokens": 4,
            "llmgw.request_id": "mine",
            "llmgw.endpoint": "m-0",
            "llmgw.queue_s": 0.0,
            "llmgw.retries": 0,
        }
        assert names(span) == ["engine chosen", "connected", "request sent", "first byte"]
        times = [at for _, at, _ in span["events"]]
        assert times == sorted(times)
        assert span["began"] <= times[0]
        assert collector.requests[-1][0] == "/v1/traces"
        assert collector.requests[-1][1]["x-api-key"] == SECRET
        assert collector.resources[-1]["service.name"] == "llmgw-router"
        await until(lambda: sum(frame.spans_sent for frame in fleet.telemetry) == 1, "it is counted")

    play(scenario)


def test_without_a_trace_of_the_clients_one_begins_here(play: Any, collector: Collector) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain())
        await fleet.ask(post(headers=b"traceparent: nonsense\r\ntracestate: a=1\r\n"))
        (span,) = await spans(collector)
        assert span["parent"] == ""
        assert engine.requests[0].headers["traceparent"] == f"00-{span['trace']}-{span['span']}-01"
        assert "tracestate" not in engine.requests[0].headers

    play(scenario)


def test_an_engine_that_failed_and_the_one_after_it_are_in_the_same_span(play: Any, collector: Collector) -> None:
    async def scenario(fleet: Fleet) -> None:
        begins = b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n"
        engine = await fleet.engine(raw(begins, chunk(b"data: {}\n\n"), abort=True))
        nobody = RouteEndpoint(id="nobody", host="127.0.0.1", port=1)
        route = model("m", engine)
        await fleet.route(type(route)(name="m", endpoints=[nobody, *route.endpoints]))
        for _ in range(8):
            client = await fleet.client()
            client.send(post(b'{"model":"m","stream":true}'))
            await client.ended()
        found = await spans(collector, 8)
        (span, *_) = [span for span in found if span["attributes"]["llmgw.retries"]]
        assert names(span)[:3] == ["engine chosen", "engine failed", "engine chosen"]
        assert [each[2]["llmgw.endpoint"] for each in span["events"] if each[0] == "engine chosen"] == [
            "nobody",
            "m-0",
        ]
        failed = next(more for name, _, more in span["events"] if name == "engine failed")
        assert "connection failed" in failed["error.message"]
        assert span["attributes"]["error.type"] == "502"
        assert span["status"][0] == 2
        assert "m-0" in span["status"][1]

    play(scenario)


def test_how_long_a_request_waited_for_room_is_told(play: Any, collector: Collector) -> None:
    async def scenario(fleet: Fleet) -> None:
        go_on = asyncio.Event()

        async def slow(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await go_on.wait()
            await plain()(seen, reader, writer)

        engine = await fleet.engine(slow)
        route = model("m", engine)
        route.endpoints[0] = RouteEndpoint(id="m-0", host="127.0.0.1", port=engine.port, concurrency=1)
        await fleet.route(route)
        asked = [asyncio.create_task(fleet.ask(post())) for _ in range(2)]
        await until(lambda: fleet.telemetry[-1].queued.get("m") == 1, "one waits")
        go_on.set()
        await asyncio.gather(*asked)
        waited = [span for span in await spans(collector, 2) if span["attributes"]["llmgw.queue_s"] > 0]
        assert [names(span)[0] for span in waited] == ["queued"]

    play(scenario)


def test_a_client_that_left_is_no_error(play: Any, collector: Collector) -> None:
    async def scenario(fleet: Fleet) -> None:
        async def silent(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        (engine,) = await fleet.serve(silent)
        client = await fleet.client()
        client.send(post())
        await until(lambda: engine.requests, "the engine has it")
        client.close()
        (span,) = await spans(collector)
        assert (span["attributes"]["http.response.status_code"], span["status"][0]) == (499, 0)

    play(scenario)


def test_a_collector_that_is_away_costs_no_request_anything_and_its_spans_are_counted(
    play: Any, collector: Collector, traced: RouterProcess
) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain())
        collector.answers.clear()
        try:
            client = await fleet.client()
            began = time.monotonic()
            for _ in range(300):
                client.send(post())
                assert (await client.answer()).status == 200
            assert time.monotonic() - began < 20
            await until(
                lambda: sum(frame.spans_dropped for frame in fleet.telemetry) > 0, "some are lost", deadline_s=25
            )
        finally:
            collector.answers.set()
        log = traced.log_path.read_text()
        assert log.count("takes no spans") == 1, "it is said seldom"
        assert SECRET not in log
        await fleet.ask(post(headers=b"x-request-id: after\r\n"))
        await until(
            lambda: any(span["attributes"]["llmgw.request_id"] == "after" for span in collector.spans),
            "spans go on",
            deadline_s=20,
        )

    play(scenario)


def test_a_router_that_ends_sends_its_last_spans(collector: Collector, new_router: Any) -> None:
    async def main() -> None:
        process = new_router(f"--trace-endpoint={collector.url}/v1/traces", "--trace-sample=1", "--drain-s=1")
        async with asyncio.timeout(30), fleet_of(process) as fleet:
            await fleet.serve(plain())
            collector.spans.clear()
            await fleet.ask(post(headers=b"x-request-id: last\r\n"))
            process.process.send_signal(signal.SIGTERM)
            await until(lambda: process.process.poll() is not None, "it ends")
        assert [span["attributes"]["llmgw.request_id"] for span in collector.spans] == ["last"]

    asyncio.run(main())


def test_headers_that_others_can_read_are_refused_and_requests_are_served(
    tmp_path: Path, collector: Collector, new_router: Any
) -> None:
    headers = tmp_path / "open.headers"
    headers.write_text("x-api-key: seen\n")
    os.chmod(headers, 0o644)

    async def main() -> None:
        process = new_router(f"--trace-endpoint={collector.url}", f"--trace-headers-file={headers}")
        async with asyncio.timeout(30), fleet_of(process) as fleet:
            (engine,) = await fleet.serve(plain())
            assert (await fleet.ask(post())).status == 200
            assert "traceparent" not in engine.requests[0].headers
        log = process.log_path.read_text()
        assert f"nothing is traced: the headers file {headers} is open to others" in log
        assert "Traceback" not in log

    asyncio.run(main())
