"""How long an engine may stay silent, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
from typing import Any

import pytest

from llmgw.agent.probe import Prober
from llmgw.agent.readiness import wait_for_answers
from llmgw.agent.spec_store import ShardRecord
from llmgw.engines.base import HttpCheck
from tests.agent.fakes import make_spec


@pytest.mark.parametrize(
    ("phase", "changes", "words"),
    [
        ("starting", {"nodes": 1}, "did not answer within 100 s of loading"),
        ("starting", {"nodes": 2}, "did not answer within 130 s of loading"),
        # Adopted while it served: silent is busy for much longer than loading may take.
        ("ready", {"nodes": 1}, "did not answer within 600 s of its adoption"),
        ("ready", {"nodes": 1, "load_timeout_s": 1800.0}, "did not answer within 1800 s of its adoption"),
    ],
)
def test_silence_is_allowed_for_as_long_as_the_phase_says(
    phase: Any, changes: dict[str, Any], words: str
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nothing listens
        record = ShardRecord(
            spec=make_spec(**{"load_timeout_s": 100.0, "rendezvous_timeout_s": 30.0, **changes}),
            boot_id="boot",
            phase=phase,
            started_boot_s=1000.0,
            http_port=silent.getsockname()[1],
            load=HttpCheck(method="GET", path="/health"),
            readiness=HttpCheck(method="POST", path="/v1/completions"),
        )
        clock = [1000.0]

        def now_boot_s() -> float:
            clock[0] += 20.0
            return clock[0]

        notes: list[str] = []
        waiting = wait_for_answers(
            record, "127.0.0.1", interval_s=0.001, now_boot_s=now_boot_s, on_note=notes.append
        )
        sentence = asyncio.run(waiting)
        assert sentence is not None
        assert words in sentence
        assert "nothing listens yet" in sentence
        assert set(notes) == {"GET /health: nothing listens yet"}


@pytest.mark.parametrize(
    "body", [b"", b"null", b"{}", b"[]", b"true", b'"ok"', b"<html>", b'{"error": "no"}', b"[" * 100_000]
)
def test_a_200_that_holds_no_answer_is_no_proof(body: bytes) -> None:
    class Engine(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    async def ask(port: int) -> tuple[bool, str]:
        prober = Prober("127.0.0.1", port)
        try:
            result = await prober.works(HttpCheck(method="POST", path="/v1/completions", body=b"{}"))
        finally:
            await prober.close()
        return result.ok, result.note

    with http.server.HTTPServer(("127.0.0.1", 0), Engine) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            ok, note = asyncio.run(ask(server.server_address[1]))
        finally:
            server.shutdown()
            thread.join()
    assert not ok
    assert note.startswith("POST /v1/completions was answered with ")
