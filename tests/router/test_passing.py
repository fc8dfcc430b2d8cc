"""Requests go to an engine and answers come back, byte for byte."""

from __future__ import annotations

import asyncio
import json

import pytest

from llmgw.messages.routes import ModelRoute, RouteEndpoint
from tests.router.conftest import Scenario
from tests.router.support import EVENT_STREAM, Fleet, chunk, hang, model, plain, post, raw, until

CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n"


def test_a_request_reaches_the_engine_with_its_body_untouched(play) -> None:
    body = b'{ "model":"m",\n "x": [1.50, "\\u00e4"] }'

    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain(b'{"a":1}'))
        answer = await fleet.ask(
            post(body, "/v1/embeddings?v=2", b"authorization: Bearer client\r\nx-api-key: k\r\nx-mine: 1\r\n")
        )
        assert (answer.status, answer.body) == (200, b'{"a":1}')
        seen = engine.requests[0]
        assert (seen.method, seen.target, seen.body) == ("POST", "/v1/embeddings?v=2", body)
        assert seen.headers["x-mine"] == "1"
        assert seen.headers["host"] == f"127.0.0.1:{engine.port}"
        assert "authorization" not in seen.headers
        assert "x-api-key" not in seen.headers
        outcome = await fleet.outcome()
        assert (outcome.model, outcome.endpoint, outcome.status, outcome.retries) == ("m", "m-0", 200, 0)
        assert outcome.first_byte_s is not None

    play(scenario)
