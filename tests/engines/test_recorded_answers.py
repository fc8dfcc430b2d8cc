"""What real engines answered while they loaded, worked and refused, as the agent judges it."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from llmgw.agent.probe import Prober, ProbeResult
from llmgw.engines.base import HttpCheck
from llmgw.engines.registry import adapter
from llmgw.server.prober import counters_sum
from tests.engines.recorded import answer


@contextmanager
def replaying(status: int, headers: dict[str, str], body: bytes) -> Iterator[int]:
    """A server on loopback that gives this answer to everything; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-type", headers.get("content-type", "text/plain"))
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.do_GET()

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def judged(recorded: tuple[int, dict[str, str], bytes], *, load: bool = False) -> ProbeResult:
    async def ask(port: int) -> ProbeResult:
        prober = Prober("127.0.0.1", port)
        try:
            if load:
                return await prober.loaded(HttpCheck(method="GET", path="/health"))
            return await prober.works(HttpCheck(method="POST", path="/v1/chat/completions", body=b"{}"))
        finally:
            await prober.close()

    with replaying(*recorded) as port:
        return asyncio.run(ask(port))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
@pytest.mark.parametrize("what", ["chat", "completions"])
def test_a_token_is_a_proof(engine: str, what: str) -> None:
    assert judged(answer(engine, what)).ok


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_a_health_page_says_that_the_model_is_loaded_and_no_more(engine: str) -> None:
    recorded = answer(engine, "health")
    assert judged(recorded, load=True).ok
    if recorded[2] == b"":
        assert not judged(recorded).ok


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
@pytest.mark.parametrize("what", ["err-404", "err-missing-messages", "err-embeddings", "err-context-prompt"])
def test_an_error_in_whatever_shape_is_none(engine: str, what: str) -> None:
    result = judged(answer(engine, what))
    assert not result.ok
    assert "was answered with" in result.note


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_a_refused_key_is_not_ready_and_the_note_says_why(engine: str) -> None:
    status, headers, body = answer(engine, "apikey")
    first = body.partition(b"HTTP/1.1")[0].strip()
    assert status == 401
    result = judged((status, headers, first))
    assert not result.ok
    assert "401" in result.note


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_the_counters_of_progress_are_in_the_engines_own_metrics(engine: str) -> None:
    text = answer(engine, "metrics")[2].decode()
    names = adapter(engine).progress_counters
    assert all(counters_sum(text, (name,)) is not None for name in names), names
    assert (counters_sum(text, names) or 0) > 0
