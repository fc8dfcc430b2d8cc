"""The context length is what the engine says in its own list of models."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from llmgw.messages.routes import ModelRoute, RouteEndpoint, RouteTable, TableVersion
from llmgw.server.context_lengths import ASKED_AGAIN_S, LIST_BYTES_MAX, ContextLengths, context_length

SHARED = Path(os.environ.get("LLMGW_SHARED", Path(__file__).parent.parent.parent.parent / "shared"))


def listed(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"object": "list", "data": entries}).encode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (listed({"id": "m", "max_model_len": 512}), 512),
        (listed({"id": "m", "meta": {"n_ctx": 1024, "n_ctx_train": 32768}}), 1024),
        (listed({"id": "x", "max_model_len": 1}, {"id": "m", "max_model_len": 2}), 2),
        (listed({"id": "other name", "max_model_len": 3}), 3),
        (listed({"id": "x", "max_model_len": 1}, {"id": "y", "max_model_len": 2}), None),
        (listed({"id": "m", "max_model_len": None}), None),
        (listed({"id": "m", "max_model_len": "512"}), None),
        (listed({"id": "m", "max_model_len": True}), None),
        (listed({"id": "m", "max_model_len": -5}), None),
        (listed({"id": "m", "meta": [1]}), None),
        (b'{"data":[1,null]}', None),
        (b"[]", None),
        (b"not json", None),
        (b"[" * 5000, None),
    ],
)
def test_it_is_found_in_every_engines_list(body: bytes, expected: int | None) -> None:
    assert context_length(body, {"m"}) == expected


@pytest.mark.parametrize(("engine", "expected"), [("vllm", 512), ("sglang", 2048), ("llamacpp", 1024)])
def test_it_is_found_in_the_recorded_lists(engine: str, expected: int) -> None:
    path = SHARED / "engines" / "http" / engine / "models.txt"
    if not path.exists():
        pytest.skip("no recorded answers of engines here")
    body = path.read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")[2]
    assert context_length(body, {"some", "names"} if engine == "sglang" else {"tiny", "gemma"}) == expected


class Fleet:
    """A hub with a table, and engines that answer what they are given."""

    def __init__(self) -> None:
        self.now = 0.0
        self.changed = asyncio.Event()
        self.answers: dict[str, httpx.Response] = {}
        self.asked: list[httpx.Request] = []
        self.hub: Any = SimpleNamespace(
            table=None,
            context_lengths={},
            changed=self.changed,
            clock=SimpleNamespace(monotonic=lambda: self.now),
        )
        self.lengths = ContextLengths(self.hub)

    def route(self, *endpoints: RouteEndpoint) -> None:
        model = ModelRoute(name="m", endpoints=list(endpoints))
        self.hub.table = RouteTable(version=TableVersion("e", 1), models=[model])

    def look(self) -> dict[str, int]:
        def answer(request: httpx.Request) -> httpx.Response:
            self.asked.append(request)
            found = self.answers.get(str(request.url))
            if found is None:
                raise httpx.ConnectError("refused")
            return found

        async def main() -> None:
            async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
                await self.lengths.look(client)

        asyncio.run(main())
        found: dict[str, int] = self.hub.context_lengths
        return found


def endpoint(id: str, **more: Any) -> RouteEndpoint:
    return RouteEndpoint(id=id, host="10.0.0.1", port=8000, **more)


def test_each_endpoint_is_asked_once_with_its_key_and_forgotten_when_it_is_gone() -> None:
    fleet = Fleet()
    assert fleet.look() == {}
    fleet.route(endpoint("r1", api_key="k"), endpoint("s", tls=True, base_path="/p", upstream_model="there"))
    fleet.answers = {
        "http://10.0.0.1:8000/v1/models": httpx.Response(200, content=listed({"id": "m", "max_model_len": 5})),
        "https://10.0.0.1:8000/p/v1/models": httpx.Response(
            200, content=listed({"id": "m", "max_model_len": 6}, {"id": "there", "max_model_len": 7})
        ),
    }
    assert fleet.look() == {"r1": 5, "s": 7}
    assert fleet.changed.is_set()
    assert [request.headers.get("authorization") for request in fleet.asked] == ["Bearer k", None]
    fleet.look()
    assert len(fleet.asked) == 2
    fleet.route(endpoint("s"))
    assert fleet.look() == {"s": 7}


@pytest.mark.parametrize(
    "answer", [None, httpx.Response(500), httpx.Response(200, content=b"{" + b" " * LIST_BYTES_MAX)]
)
def test_one_that_does_not_say_is_asked_again_later(answer: httpx.Response | None) -> None:
    fleet = Fleet()
    fleet.route(endpoint("r1"))
    if answer is not None:
        fleet.answers["http://10.0.0.1:8000/v1/models"] = answer
    assert fleet.look() == {}
    fleet.now += ASKED_AGAIN_S / 2
    fleet.look()
    assert len(fleet.asked) == 1
    fleet.now += ASKED_AGAIN_S
    fleet.look()
    assert len(fleet.asked) == 2
    assert not fleet.changed.is_set()
