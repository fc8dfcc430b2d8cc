"""Whatever shape an engine's error has, a client finds its message where the API that it speaks has it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import openai
import pytest

from llmgw.router.engine_errors import ERROR_BYTES_MAX, openai_body, read_error
from tests.router.support import Fleet, chunk, plain, post, raw

SHARED = Path(os.environ.get("LLMGW_SHARED", Path(__file__).parent.parent.parent.parent / "shared"))
FLAT = b'{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}'


def recorded() -> list[tuple[str, int, bytes]]:
    """The errors among the recorded answers: name, status, body."""
    found = []
    for path in sorted((SHARED / "engines" / "http").glob("*/err-*.txt")):
        head, _, body = path.read_text(errors="replace").replace("\r\n", "\n").partition("\n\n")
        statuses = [int(line.split()[1]) for line in head.splitlines() if line.startswith("HTTP/")]
        if statuses and statuses[0] >= 400:
            found.append((f"{path.parent.name}-{path.stem}", statuses[0], body.strip().encode()))
    return found


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"m","type":"t","param":"p","code":400}}', "m"),
        (FLAT, "too long"),
        (b'{"error":"Unauthorized"}', "Unauthorized"),
        (b'{"detail":"Not Found"}', "The engine of this model does not serve /v1/x (Not Found)"),
        (b'{"error":{"message":"File Not Found","code":404}}', "The engine of this model does not serve /v1/x ("),
        (b'{"detail":[{"loc":["body","n"],"msg":"Field required","type":"missing"}]}', "body.n: Field required"),
        (b'{"message":""}', '{"message":""}'),
        (b"upstream connect error", "upstream connect error"),
        (b'"just a string"', "just a string"),
        (b"[1,2]", "[1,2]"),
        (b"null", "The engine answered 400 (Bad Request) and did not say why."),
        (b"", "The engine answered 400 (Bad Request) and did not say why."),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"<html><h1>502</h1></html>", "The engine, or a proxy before it, answered with a page instead of"),
        (b'{"error":' * 1100, '{"error":'),
        (b'{"error":{"message":{"a":1}}}', '{"message":{"a":1}}'),
    ],
)
def test_the_message_is_found_in_every_shape(body: bytes, message: str) -> None:
    assert read_error(body, 400, "/v1/x").message.startswith(message)


def test_files_and_lines_of_an_engines_installation_are_left_out() -> None:
    body = {
        "object": "error",
        "message": '1 validation error:\n  no\n\n  File "/opt/x.py", line 3, in f\n    POST',
    }
    assert read_error(json.dumps(body).encode(), 400, "/v1/x").message == "1 validation error:\n  no"


def test_every_recorded_error_of_the_real_engines_is_readable() -> None:
    errors = recorded()
    if not errors:
        pytest.skip("no recorded answers of engines here")
    for name, status, body in errors:
        error = json.loads(openai_body(read_error(body, status, "/v1/x"), status))["error"]
        assert error["message"], name
        assert "did not say why" not in error["message"] or not body, name
        assert "site-packages" not in error["message"], name


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        (400, openai.BadRequestError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("body", [FLAT, b'{"detail":"too long"}', b"too long", b'{"error":"too long"}'])
def test_the_openai_client_raises_its_own_class_with_the_message(play, status, raised, body) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain(body, status))
        base = f"http://127.0.0.1:{fleet.router.port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            with pytest.raises(raised) as caught:
                await client.completions.create(model="m", prompt="hi")
        assert caught.value.body["message"] == "too long"
        assert caught.value.status_code == status

    play(scenario)


@pytest.mark.parametrize("body", [b'{"error":"Unauthorized"}', b'{"error":{"message":"Invalid API Key"}}'])
def test_a_wrong_key_of_the_gateways_own_is_not_told_as_the_clients(play, body) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain(body, 401, b"www-authenticate: Bearer\r\n"))
        answer = await fleet.ask(post())
        error = json.loads(answer.body)["error"]
        assert answer.status == 502
        assert error["message"].startswith("The engine refused the key that this gateway has for it")
        assert "www-authenticate" not in answer.headers
        assert (await fleet.outcome()).status == 502

    play(scenario)


def test_an_error_in_openais_shape_goes_on_byte_for_byte_in_whatever_pieces_it_came(play) -> None:
    body = b'{ "error": {"message":"no", "extra": 1} }'
    head = b"HTTP/1.1 400 X\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"

    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(raw(head, chunk(body[:7]), chunk(body[7:])[:4], chunk(body[7:])[4:], b"0\r\n\r\n"))
        answer = await fleet.ask(post())
        assert (answer.status, answer.body) == (400, body)
        assert answer.headers["content-length"] == str(len(body))
        assert answer.headers["content-type"] == "application/json"

    play(scenario)


def test_a_plain_text_error_becomes_json_also_for_http10(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(raw(b"HTTP/1.1 400 X\r\ncontent-type: text/plain\r\n\r\nno such thing", close=True))
        for version in ("1.1", "1.0"):
            answer = await fleet.ask(post(version=version))
            assert json.loads(answer.body)["error"]["message"] == "no such thing"
            assert answer.headers["content-type"] == "application/json"

    play(scenario)


def test_what_is_too_large_for_an_error_goes_on_as_it_came(play) -> None:
    body = b"x" * (ERROR_BYTES_MAX + 10)
    head = b"HTTP/1.1 400 X\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"

    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(raw(head, chunk(body[:40000]), chunk(body[40000:]), chunk(b"more"), b"0\r\n\r\n"))
        assert (await fleet.ask(post())).body == body + b"more"
        await fleet.serve(plain(body, 400))
        assert (await fleet.ask(post())).body == body

    play(scenario)


def test_an_error_that_breaks_off_is_the_gateways_own_error(play) -> None:
    head = b"HTTP/1.1 400 X\r\ncontent-type: text/plain\r\ncontent-length: 90\r\n\r\n"

    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(raw(head + b"no such", abort=True))
        answer = await fleet.ask(post())
        assert answer.status == 502
        assert json.loads(answer.body)["error"]["code"] == "engine_failed"
        assert (await fleet.outcome()).status == 502

    play(scenario)
