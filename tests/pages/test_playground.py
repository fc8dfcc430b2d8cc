"""The playground over a gateway of the tests' own: what is passed on and back, and what leaving does."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from llmgw.messages.admin import ModelView
from llmgw.server.playground import Playground
from tests.ctl.scripted import ScriptedBackend, ServedAdmin
from tests.pages.chromium import until
from tests.pages.gateway import HEAD, Gateway, delta, gateway, streaming
from tests.pages.visitor import Visitor
from tests.router.support import Seen, plain

CHAT = "/admin/playground/chat"
BODY = {"model": "chat-small", "messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.fixture(scope="module")
def answering() -> Iterator[Gateway]:
    with gateway(streaming("a")) as running:
        yield running


@pytest.fixture(scope="module")
def served() -> Iterator[ServedAdmin]:
    server = ServedAdmin(ScriptedBackend())
    yield server
    server.stop()


@pytest.fixture
def backend(served: ServedAdmin, answering: Gateway) -> ScriptedBackend:
    served.backend.keys_needed = False
    served.backend.gateway = answering.address
    answering.script = streaming("Hel", "lo", "</script>")
    answering.engine.requests.clear()
    return served.backend


def ask(visitor: Visitor, body: Any = BODY, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    word = {"x-csrf-token": visitor.csrf(), "content-type": "application/json"}
    return visitor.http.post(CHAT, content=content, headers={**word, **headers})


def test_what_the_page_asks_is_passed_on_as_it_is_and_so_is_the_stream(
    visitor: Visitor, backend: ScriptedBackend, answering: Gateway
) -> None:
    answer = ask(visitor)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert (answer.headers["x-request-id"], answer.headers["x-llmgw-replica"]) == ("req-77", "chat-small-3c4d")
    assert "no-store" in answer.headers["cache-control"]
    data = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    told = [json.loads(line) for line in data[:-1]]
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in told[:-1]) == "Hello</script>"
    assert (told[-1]["usage"]["completion_tokens"], data[-1]) == (12, "[DONE]")
    (seen,) = answering.engine.requests
    assert (seen.target, json.loads(seen.body)) == ("/v1/chat/completions", BODY)
    assert not {"cookie", "x-csrf-token", "authorization"} & seen.headers.keys()


def test_where_keys_are_needed_the_server_shows_its_own(
    visitor: Visitor, backend: ScriptedBackend, answering: Gateway
) -> None:
    backend.keys_needed = True
    assert ask(visitor).status_code == 200
    assert answering.engine.requests[0].headers["authorization"] == "Bearer llmgw-own-secret"
    page = visitor.http.get("/admin/playground").text
    assert "LLMGW_API_KEY" in page
    assert "llmgw-own-secret" not in page


def test_a_refusal_of_the_gateway_is_the_answer(visitor: Visitor, answering: Gateway) -> None:
    answering.script = plain(b'{"error":{"message":"The model cannot answer now."}}', 503, b"retry-after: 5\r\n")
    answer = ask(visitor)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["message"] == "The model cannot answer now."


def test_nothing_that_an_engine_answers_is_a_document_of_this_site(visitor: Visitor, answering: Gateway) -> None:
    async def page(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nset-cookie: a=b\r\ncontent-length: 3\r\n\r\n<b>"
        )

    answering.script = page
    answer = ask(visitor)
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"x-csrf-token": "guess"},
        {"x-csrf-token": ""},
        {"origin": "https://x.example"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_only_a_page_of_this_session_may_ask(
    visitor: Visitor, answering: Gateway, headers: dict[str, str]
) -> None:
    refused = ask(visitor, **headers)
    code = "cross-site" if headers.keys() & {"origin", "sec-fetch-site"} else "no-csrf-token"
    assert (refused.status_code, refused.json()["code"]) == (403, code)
    assert answering.engine.requests == []


def test_whoever_is_not_logged_in_asks_nothing(served: ServedAdmin, answering: Gateway) -> None:
    assert httpx.post(served.url + CHAT, json=BODY, trust_env=False).status_code == 401
    sent = httpx.get(f"{served.url}/admin/playground?model=a", trust_env=False)
    assert sent.headers["location"].startswith("/admin/login?next=/admin/playground")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "this is no chat request"),
        (b"[]", "this is no chat request"),
        (b"\xff\xfe", "this is no chat request"),
        ({"model": 1, "messages": []}, "this is no chat request"),
        ({"messages": []}, "missing required field `model`"),
        ({"model": "m", "messages": ["x"]}, "this is no chat request"),
        (b"[" * 100_000, "this is no chat request"),
        (b" " * (4 * 1024 * 1024 + 1), "larger than 4194304 bytes"),
    ],
)
def test_what_is_no_chat_request_gets_a_sentence_and_no_engine(
    visitor: Visitor, answering: Gateway, body: Any, words: str
) -> None:
    refused = ask(visitor, body)
    assert refused.status_code in (400, 413)
    assert words in refused.json()["message"]
    assert answering.engine.requests == []


def test_a_browser_that_leaves_in_the_middle_of_a_stream_closes_the_engines(
    visitor: Visitor, answering: Gateway, backend: ScriptedBackend
) -> None:
    answering.script = streaming("first", endless=True)
    left = answering.left
    headers = {"x-csrf-token": visitor.csrf()}
    with visitor.http.stream("POST", CHAT, json=BODY, headers=headers) as answer:
        parts = answer.iter_raw()  # kept: without it the connection is closed
        assert b"first" in next(parts)
        assert backend.playground.running == 1
    until(lambda: answering.left == left + 1, "the engine's client has left")
    until(lambda: backend.playground.running == 0, "no chat is left")


def test_a_browser_that_leaves_before_the_answer_has_begun_closes_the_engines(
    visitor: Visitor, answering: Gateway, backend: ScriptedBackend, served: ServedAdmin
) -> None:
    async def nothing(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    answering.script = nothing
    left = answering.left
    cookie = "; ".join(f"{name}={value}" for name, value in visitor.http.cookies.items())
    body = json.dumps(BODY)
    with socket.create_connection((served.host, served.port)) as sock:
        sock.sendall(
            f"POST {CHAT} HTTP/1.1\r\nhost: {served.host}:{served.port}\r\ncookie: {cookie}\r\n"
            f"x-csrf-token: {visitor.csrf()}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
        )
        until(lambda: answering.engine.requests, "it has come to the engine")
        assert backend.playground.running == 1
    until(lambda: answering.left == left + 1, "the engine's client has left")
    until(lambda: backend.playground.running == 0, "no chat is left")


def test_no_more_chats_run_than_may(visitor: Visitor, answering: Gateway, backend: ScriptedBackend) -> None:
    answering.script = streaming("first", endless=True)
    headers = {"x-csrf-token": visitor.csrf()}
    with httpx.Client(base_url=visitor.url, trust_env=False, cookies=visitor.http.cookies) as other:
        streams = [other.stream("POST", CHAT, json=BODY, headers=headers) for _ in range(3)]
        for stream in streams:
            stream.__enter__()
        refused = ask(visitor)
        assert refused.status_code == 429
        assert "as many chats of the playground run as may at a time (3)" in refused.json()["message"]
        for stream in streams:
            stream.__exit__(None, None, None)
    until(lambda: backend.playground.running == 0, "no chat is left")
    answering.script = streaming("again")
    assert ask(visitor).status_code == 200


def test_a_router_that_is_not_there_is_said(visitor: Visitor, backend: ScriptedBackend) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        backend.gateway = f"127.0.0.1:{nobody.getsockname()[1]}"
        refused = ask(visitor)
    assert refused.status_code == 502
    assert "no router answers at http://127.0.0.1:" in refused.json()["message"]


def test_a_stream_that_breaks_off_ends_with_an_error_of_its_own(visitor: Visitor, answering: Gateway) -> None:
    async def broken(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + delta("half"))
        await writer.drain()
        writer.transport.abort()

    answering.script = broken
    answer = ask(visitor)
    last = json.loads(answer.text.strip().rpartition("data: ")[2])
    assert "half" in answer.text
    assert "the connection broke" in last["error"]["message"]


# Without a script.


def form(visitor: Visitor, **fields: str) -> httpx.Response:
    sent = {"csrf": visitor.csrf(), "model": "chat-small", "message": "hello <b>", **fields}
    return visitor.http.post("/admin/playground", data=sent)


def test_the_form_gets_a_whole_answer_as_a_page(visitor: Visitor, answering: Gateway) -> None:
    told = {
        "choices": [{"message": {"content": "<script>alert(1)</script> & so on"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 1234, "completion_tokens": 56},
    }
    answering.script = plain(json.dumps(told).encode(), 200, b"x-request-id: req-9\r\nx-llmgw-replica: r-1\r\n")
    answer = form(visitor, system="Be brief.", temperature="0.5", max_tokens="7", more='{"top_k": 3}', usage="on")
    assert answer.status_code == 200
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; so on" in answer.text
    assert "hello &lt;b&gt;" in answer.text
    assert "1,234 prompt and 56 completion tokens, ended by length, from r-1" in answer.text
    assert "/admin/requests?id=req-9" in answer.text
    assert answering.bodies == [
        {
            "model": "chat-small",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello <b>"}],
            "temperature": 0.5,
            "max_tokens": 7,
            "top_k": 3,
            "stream": False,
        }
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"message": " "}, "There is no message to send."),
        ({"temperature": "hot"}, "Temperature must be a number from 0 to 2"),
        ({"temperature": "nan"}, "Temperature must be a number from 0 to 2"),
        ({"top_p": "1.5"}, "Top_p must be a number from 0 to 1"),
        ({"max_tokens": "1.5"}, "Max_tokens must be a whole number from 1"),
        ({"seed": "²"}, "Seed must be a whole number"),
        ({"more": "[1]"}, "More parameters are a JSON object"),
        ({"model": "a\nb"}, "Model must be 1 to"),
    ],
)
def test_a_field_that_cannot_be_meant_is_said_and_what_was_typed_stays(
    visitor: Visitor, answering: Gateway, fields: dict[str, str], words: str
) -> None:
    answer = form(visitor, **{"system": "Kept <i>.", **fields})
    assert answer.status_code == 400
    assert words in answer.text
    assert "Kept &lt;i&gt;." in answer.text
    assert answering.engine.requests == []


@pytest.mark.parametrize(
    ("body", "status", "shown", "words"),
    [
        (b'{"error":{"message":"The engine is asleep."}}', 503, 503, "The engine is asleep."),
        (b"<html>", 500, 502, "answered 500 with something that is no chat completion"),
        (b"{}", 418, 502, "answered 418 with something"),
        (b"\xff", 200, 502, "answered 200 with something"),
    ],
)
def test_what_the_engine_refuses_is_said_on_the_page(
    visitor: Visitor, answering: Gateway, body: bytes, status: int, shown: int, words: str
) -> None:
    answering.script = plain(body, status)
    answer = form(visitor)
    assert answer.status_code == shown
    assert words in answer.text
    assert "hello &lt;b&gt;</textarea>" in answer.text, "the message can be sent again"


def test_the_form_of_another_site_is_refused(visitor: Visitor, answering: Gateway) -> None:
    assert form(visitor, csrf="guess").status_code == 403
    assert answering.engine.requests == []


def test_models_that_do_not_chat_say_what_they_are_for(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.models_known.append(ModelView(name="bge", task="embedding", endpoints_ready=1))
    page = visitor.http.get("/admin/playground", params={"model": "bge"}).text
    assert "bge is for embeddings and does not chat; ask it at /v1/embeddings." in page
    assert "does not chat" not in visitor.http.get("/admin/playground").text, "one that does is chosen first"
    backend.models_known.clear()
    assert "There is no model yet" in visitor.http.get("/admin/playground").text
    backend.__init__()  # type: ignore[misc]
    unknown = visitor.http.get("/admin/playground", params={"model": "nobody"}).text
    assert "There is no model &#39;nobody&#39;." in unknown
    assert visitor.http.get("/admin/playground?model=%0a").status_code == 400
    assert visitor.http.get("/admin/playground?x=1").status_code == 400


@pytest.mark.parametrize(
    ("listen", "asked_as", "url"),
    [
        ("0.0.0.0:8080", "gw.internal", "http://gw.internal:8080/v1"),
        ("[::]:8080", "2001:db8::7", "http://[2001:db8::7]:8080/v1"),
        ("127.0.0.1:8080", "gw.internal", "http://127.0.0.1:8080/v1"),
        ("10.0.0.5:8080", "gw.internal", "http://10.0.0.5:8080/v1"),
        ("0.0.0.0:8080", "'; rm -rf /", "http://127.0.0.1:8080/v1"),
    ],
)
def test_the_examples_ask_where_clients_find_the_gateway(listen: str, asked_as: str, url: str) -> None:
    assert Playground(lambda: listen, key="", needs_key=lambda: False).base_url(asked_as) == url


@pytest.mark.parametrize("how", ["logout", "revoked"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_session_that_ends_ends_what_was_asked_in_it(
    visitor: Visitor, answering: Gateway, backend: ScriptedBackend, how: str, begun: bool
) -> None:
    async def nothing(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    answering.script = streaming("first", endless=True) if begun else nothing
    left, word, tokens = answering.left, visitor.csrf(), dict(backend.tokens_known)
    told: list[tuple[int, str]] = []

    def chat() -> None:
        # As whoever has a copy of the cookie asks.
        with httpx.Client(base_url=visitor.url, trust_env=False, cookies=dict(visitor.http.cookies)) as other:
            answer = other.post(CHAT, json=BODY, headers={"x-csrf-token": word}, timeout=90)
            told.append((answer.status_code, answer.text))

    asking = threading.Thread(target=chat, daemon=True)
    asking.start()
    until(lambda: answering.engine.requests, "it has come to the engine")
    try:
        if how == "logout":
            visitor.http.post("/admin/logout", data={"csrf": word})
        else:
            backend.tokens_known.clear()
        until(lambda: answering.left == left + 1, "the engine's client has left")
        until(lambda: backend.playground.running == 0, "no chat is left")
        asking.join(10)
    finally:
        backend.tokens_known.update(tokens)
    ((status, text),) = told
    assert status == (200 if begun else 401)
    assert '"code":"session-over"' in text


def test_a_header_in_no_alphabet_of_http_is_no_defect(visitor: Visitor, answering: Gateway) -> None:
    async def odd(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-llmgw-replica: \xe2\x82\xac\x01\r\n"
            b"retry-after: \xe2\x82\xac\r\ncontent-length: 2\r\n\r\n{}"
        )
        await writer.drain()

    answering.script = odd
    assert ask(visitor).status_code == 200
