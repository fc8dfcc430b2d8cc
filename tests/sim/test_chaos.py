"""That gateway-chaos would notice: each thing that must not happen, made up, is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llmgw.sim.chaos_load import ChaosLoad, ChaosRequest, Fate
from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.engine_text import say
from llmgw.sim.scenarios.chaos_verdict import OutcomeCounts, judge_chaos
from llmgw.sim.scenarios.judge import Judge

MODEL, REPLICA, SHARD, TOKENS = "demo/small", "small-1", "small-1.0", 24
STREAM_HEAD = f"content-type: text/event-stream\r\nx-llmgw-replica: {REPLICA}\r\nconnection: close\r\n\r\n"


def words(name: str = "chaos-0") -> list[str]:
    return say(MODEL, SHARD, f"I am {name}", 0, TOKENS, 64, ()).tokens


def events(pieces: list[str], end: str = "data: [DONE]\n\n") -> str:
    lines = []
    for index, piece in enumerate(pieces):
        reason = '"length"' if index == TOKENS - 1 else "null"
        choice = f'{{"index":0,"delta":{{"content":"{piece}"}},"finish_reason":{reason}}}'
        lines.append(f'data: {{"choices":[{choice}]}}\n\n')
    return "HTTP/1.1 200 OK\r\n" + STREAM_HEAD + "".join(lines) + end


def whole(text: str, length: int | None = None) -> str:
    body = f'{{"choices":[{{"message":{{"content":"{text}"}}}}]}}'
    head = (
        f"x-llmgw-replica: {REPLICA}\r\ncontent-length: {len(body) + (length or 0)}\r\nconnection: close\r\n\r\n"
    )
    return f"HTTP/1.1 200 OK\r\n{head}{body}"


def fate_of(answer: str, *, stream: bool) -> ChaosRequest:
    """What the load says of one request whose gateway answers with these bytes."""

    async def run() -> ChaosRequest:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer.encode())
            writer.close()
            load._stopping = True

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        load = ChaosLoad(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {MODEL: 2}, TOKENS)
        client: Callable[..., Awaitable[None]] = load._client
        await asyncio.wait_for(client(MODEL, stream, False), 10)
        server.close()
        return load.requests[0]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "stream", "fate"),
    [
        (events(words()), True, "served"),
        (whole("".join(words())), False, "served"),
        (events([*words()[:8], *words()[7:]]), True, "wrong text"),
        (whole("".join(words()[:-1])), False, "wrong text"),
        (events(words("chaos-1")), True, "wrong text"),
        (events(words(), end=""), True, "truncated"),
        (events(words(), end="data: [DONE]\n\n" * 2), True, "truncated"),
        (events(words()[:9], end='data: {"error": {"message": "it broke"}}\n\n'), True, "broken"),
        (events([], end='data: {"error": {"message": "it broke"}}\n\n'), True, "broken"),
        (whole("".join(words()), length=5), False, "cut"),
        ("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n", False, "refused"),
        (f"HTTP/1.1 500 No\r\nx-llmgw-replica: {REPLICA}\r\ncontent-length: 0\r\n\r\n", True, "engine 500"),
        ("", True, "lost"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", False, "strange"),
    ],
)
def test_the_load_knows_what_became_of_a_request(answer: str, stream: bool, fate: str) -> None:
    assert fate_of(answer, stream=stream).fate == fate


def verdict(
    folder: Path,
    fate: Fate,
    log: dict[str, str],
    *,
    outcomes: dict[str, int] | None = None,
    stored: int = 1,
    **changes: Any,
) -> list[str]:
    """What the scenario holds against one request, with what engines logged of it."""
    for shard, text in log.items():
        path = folder / "node01" / "work" / "shards" / shard
        path.mkdir(parents=True)
        (path / "engine.log").write_text(text)
    request = ChaosRequest("chaos-0", MODEL, True, 0.0, 1.0, fate, "", REPLICA, SHARD)
    for name, value in changes.items():
        setattr(request, name, value)
    load = ChaosLoad("", {}, TOKENS, [request])
    status = "2xx" if fate == "served" else "5xx"
    later = Counter({status: 1} if outcomes is None else outcomes)
    counts = OutcomeCounts(later=later, asked_at=50, died_at=60, stored_before=7, stored=7 + stored)
    judge = Judge(lambda line: None)
    judge_chaos(cast(DemoFleet, SimpleNamespace(folder=folder)), judge, load, counts, {"small-9.0"})
    return judge.failures


RECEIVED = "received chaos-0\n"
ANSWERED = RECEIVED + '"POST /v1/chat/completions HTTP/1.1" 200 chaos-0\n'
SAID_500 = RECEIVED + '"POST /v1/chat/completions HTTP/1.1" 500 chaos-0\n'


def test_what_went_well_is_not_held_against_anybody(tmp_path: Path) -> None:
    assert verdict(tmp_path / "a", "served", {SHARD: ANSWERED}) == []
    assert verdict(tmp_path / "b", "broken", {SHARD: RECEIVED}) == []
    assert verdict(tmp_path / "c", "engine 500", {SHARD: SAID_500}) == []
    assert verdict(tmp_path / "d", "served", {SHARD: ANSWERED, "small-2.0": ANSWERED}) == [], "one gave up on it"
    assert verdict(tmp_path / "e", "refused", {SHARD: RECEIVED, "small-2.0": RECEIVED}) == [], "two died on it"
    assert verdict(tmp_path / "f", "served", {"small-9.0": RECEIVED}, shard="small-9.0") == [], (
        "killed before it said"
    )
    reset = "502 the engine small-9: it reset the connection before it answered"
    assert verdict(tmp_path / "h", "refused", {SHARD: RECEIVED}, what=reset) == [], "killed before it logged it"
    assert verdict(tmp_path / "g", "served", {SHARD: ANSWERED}, outcomes={}, ended_at=55.0) == [], "nobody knows"


def test_what_must_not_happen_is_told(tmp_path: Path) -> None:
    failed = ["no request failed that had not received a byte"]
    assert verdict(tmp_path / "a", "refused", {SHARD: RECEIVED}) == failed
    alive = "502 the engine small-2: it reset the connection before it answered"
    assert verdict(tmp_path / "n", "refused", {SHARD: RECEIVED}, what=alive) == failed, "that one was not killed"
    assert "no request failed that had not received a byte" in verdict(tmp_path / "b", "lost", {SHARD: RECEIVED})
    assert verdict(tmp_path / "c", "truncated", {SHARD: RECEIVED}, outcomes={}) == [
        "no stream was cut short without an error event"
    ]
    assert verdict(tmp_path / "d", "wrong text", {SHARD: ANSWERED}, outcomes={}) == [
        "no word came twice, and every answer came from one engine"
    ]
    engines = ["each of 1 answers was given by the engine that it names"]
    assert verdict(tmp_path / "e", "served", {SHARD: RECEIVED}) == engines
    assert verdict(tmp_path / "f", "served", {SHARD: RECEIVED, "small-2.0": ANSWERED}) == engines
    assert verdict(tmp_path / "g", "served", {SHARD: ANSWERED * 2}) == [
        "no engine answered the same request twice"
    ]
    assert verdict(tmp_path / "h", "engine 500", {SHARD: RECEIVED}) == [
        "each of 1 answers with 500 is an engine's own"
    ]
    (sentence,) = verdict(tmp_path / "i", "served", {SHARD: ANSWERED}, outcomes={})
    assert sentence.startswith("routers counted 0 x 2xx, clients 1")
    (sentence,) = verdict(tmp_path / "j", "served", {SHARD: ANSWERED}, outcomes={"2xx": 2})
    assert sentence.startswith("routers counted 2 x 2xx, clients 1")
    for number, stored in enumerate((0, 2)):
        (sentence,) = verdict(tmp_path / f"k{number}", "served", {SHARD: ANSWERED}, stored=stored)
        assert sentence.startswith(f"usage has {stored} requests")
