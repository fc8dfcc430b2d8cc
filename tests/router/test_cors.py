"""Pages of other sites: what browsers may be told, and that an engine has no say in it."""

from __future__ import annotations

import asyncio

import pytest

from llmgw.config.origins import parse_origin
from tests.router.support import EVENT_STREAM, Answer, Client, chunk, fleet_of, plain, post, raw

PAGE = "https://chat.example.org"
ALLOW = "access-control-allow-origin"
PATH = b"/v1/chat/completions"


def from_page(origin: str, request: bytes) -> bytes:
    return request.replace(b"host: gw\r\n", b"host: gw\r\norigin: %b\r\n" % origin.encode())


def preflight(origin: str, path: bytes = PATH) -> bytes:
    asked = (
        b"access-control-request-method: POST\r\naccess-control-request-headers: authorization,x-stainless-os\r\n"
    )
    return from_page(origin, b"OPTIONS %b HTTP/1.1\r\nhost: gw\r\n%b\r\n" % (path, asked))


async def asked(client: Client, request: bytes, *, bodiless: bool = False) -> Answer:
    client.send(request)
    return await client.answer(bodiless=bodiless)


def test_a_page_of_an_allowed_origin_reads_answers_streams_and_errors(new_router) -> None:
    async def main() -> None:
        async with fleet_of(new_router(f"--cors-origin={PAGE}", "--cors-origin=http://localhost:3000")) as fleet:
            stream = (
                b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"access-control-allow-origin: *\r\n"
                b"Access-Control-Allow-Credentials: true\r\nvary: accept\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            (engine,) = await fleet.serve(raw(stream + chunk(b"data: x\n\n") + b"0\r\n\r\n"))
            client = await fleet.client()
            allowed = await asked(client, preflight(PAGE))
            assert (allowed.status, allowed.headers[ALLOW]) == (204, PAGE)
            assert allowed.headers["access-control-allow-methods"] == "POST"
            assert allowed.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
            assert int(allowed.headers["access-control-max-age"]) > 0
            requests = {
                200: post(),
                404: post(b'{"model":"gone"}'),
                400: post(b"x"),
                405: b"PUT %b HTTP/1.1\r\nhost: gw\r\ncontent-length: 0\r\n\r\n" % PATH,
            }
            for origin in (PAGE, "http://localhost:3000"):
                for status, request in requests.items():
                    answer = await asked(client, from_page(origin, request))
                    assert (answer.status, answer.headers[ALLOW]) == (status, origin)
                    assert "access-control-allow-credentials" not in answer.headers
                    assert "retry-after" in answer.headers["access-control-expose-headers"]
                listed = await asked(client, from_page(origin, b"GET /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n"))
                assert (listed.status, listed.headers[ALLOW], listed.headers["vary"]) == (200, origin, "Origin")
            assert not {"origin", ALLOW} & set(engine.requests[-1].headers)
            refused = from_page(PAGE, post().replace(b"content-length: ", b"content-length: 999999999"))
            answer = await asked(client, refused)
            assert (answer.status, answer.headers[ALLOW]) == (413, PAGE)

    asyncio.run(main())


def test_other_pages_and_clients_without_a_page_are_answered_as_ever(new_router) -> None:
    async def main() -> None:
        async with fleet_of(new_router(f"--cors-origin={PAGE}")) as fleet:
            await fleet.serve(plain(b"good"))
            client = await fleet.client()
            for origin in ("https://evil.example", PAGE + ".evil.example", "null", PAGE + ":444", "HTTPS://x"):
                for request in (post(), preflight(origin)):
                    answer = await asked(client, from_page(origin, request) if request == post() else request)
                    assert answer.status in (200, 204)
                    assert ALLOW not in answer.headers
                    assert "origin" in answer.headers["vary"].lower() or answer.status == 204
            answer = await asked(client, post())
            assert not {name for name in answer.headers if name.startswith("access-control") or name == "vary"}

    asyncio.run(main())


def test_without_origins_nobody_is_allowed_be_it_by_an_engine(play) -> None:
    async def scenario(fleet) -> None:
        await fleet.serve(plain(headers=b"access-control-allow-origin: *\r\n"))
        client = await fleet.client()
        for request in (from_page(PAGE, post()), preflight(PAGE)):
            answer = await asked(client, request)
            assert answer.status in (200, 204)
            assert ALLOW not in answer.headers

    play(scenario)


def test_everybody_may_where_that_is_said(new_router) -> None:
    async def main() -> None:
        async with fleet_of(new_router("--cors-origin=*")) as fleet:
            await fleet.serve(plain())
            client = await fleet.client()
            for request in (from_page("https://any.example", post()), preflight("null")):
                answer = await asked(client, request)
                assert answer.headers[ALLOW] == "*"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("HTTPS://Chat.Example.org", "https://chat.example.org"),
        ("https://x:443", "https://x"),
        ("http://x:443", "http://x:443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
        ("*", "*"),
        ("https://x/", None),
        ("https://x/path", None),
        ("https://*.example.org", None),
        ("example.org", None),
        ("https://x:0", None),
        ("https://x:99999", None),
        ("null", None),
        ("https://x\r\nset-cookie: a", None),
        ("", None),
    ],
)
def test_an_origin_is_written_as_browsers_send_it_or_refused_with_a_sentence(
    text: str, origin: str | None
) -> None:
    if origin is None:
        with pytest.raises(ValueError, match="is no origin"):
            parse_origin(text)
    else:
        assert parse_origin(text) == origin


def test_a_bad_origin_is_named_at_the_start(new_router) -> None:
    router = new_router("--cors-origin=example.org")
    assert router.process.wait(20) == 2
    assert "is no origin" in " ".join(router.log_path.read_text().replace("│", "").split())
