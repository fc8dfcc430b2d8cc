"""What two servers could read differently is refused, so that no request hides within another."""

from __future__ import annotations

import json

import pytest

from tests.router.support import Fleet, plain

H = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\n"
BODY = b'{"model":"m"}'
SIZED = b"content-length: 13\r\n\r\n" + BODY
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"d\r\n" + BODY + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "wire",
    [
        H + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        H + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        H + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        H + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
        H + b"content-length: 3, 3\r\n\r\nabc",
        H + b"content-length: +3\r\n\r\nabc",
        H + b"content-length: -3\r\n\r\nabc",
        H + b"content-length: 0x3\r\n\r\nabc",
        H + b"content-length: 99999999999999999999999\r\n\r\nabc",
        H + b"content-length : 3\r\n\r\nabc",
        H + b"content-length: 3\r\n 4\r\n\r\nabc",
        H + b"x-a: b\r\n folded\r\n\r\n",
        H + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        H + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        H + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        H + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
        H + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        H + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        H + b"transfer-encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
        H + b"transfer-encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
        H + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        H + b"transfer-encoding: chunked\r\n\r\n3\nabc\n0\n\n",
        H + b"transfer-encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n",
        H + b"transfer-encoding: chunked\r\n\r\n0\r\ncontent-length: 3\r\n\r\n",
        H + b"x: a\0b\r\n\r\n",
        H + b"a b: c\r\n\r\n",
        H + b"host: other\r\ncontent-length: 0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
        b"POST /v1/x HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\nhost: gw\ncontent-length: 0\n\n",
        b"GET /v1/models HTTP/1.1\r\nhost: gw\rx: y\r\n\r\n",
        b"GET /v1/mo dels HTTP/1.1\r\nhost: gw\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 40,
        b"nonsense\r\n\r\n",
        H + b"transfer-encoding : chunked\r\n\r\n" + CHUNKS,
        H + CHUNKED + CHUNKED + b"\r\n" + CHUNKS,
        H + b"transfer-encoding: chunked\0\r\n\r\n" + CHUNKS,
        H + b'transfer-encoding: "chunked"\r\n\r\n' + CHUNKS,
        H + b"transfer-encoding: chunked;a=b\r\n\r\n" + CHUNKS,
        H + b"transfer-encoding: ,chunked\r\n\r\n" + CHUNKS,
        H + b"content-length:\r\n\r\n" + BODY,
        H + b"content-length: 13,\r\n\r\n" + BODY,
        H + b"content-length: 13 13\r\n\r\n" + BODY,
        H + b"content-length: 1_3\r\n\r\n" + BODY,
        H + b"content-length: \xd9\xa13\r\n\r\n" + BODY,
        H + CHUNKED + b"\r\n" + CHUNKS.replace(b"d\r", b"d \r", 1),
        H + CHUNKED + b"\r\n " + CHUNKS,
        H + CHUNKED + b"\r\n\r\n" + CHUNKS,
        H + CHUNKED + b"\r\nd;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n",
        H + CHUNKED + b"\r\nd;a\rb\r\n" + BODY + b"\r\n0\r\n\r\n",
        H + CHUNKED + b'\r\nd;a="x\r\n"\r\n' + BODY + b"\r\n0\r\n\r\n",
        H + CHUNKED + b"\r\nd;\0\r\n" + BODY + b"\r\n0\r\n\r\n",
        H + CHUNKED + b"\r\nd\r\n" + BODY + b"0\r\n\r\n",
        H + CHUNKED + b"\r\nd\r\n" + BODY + b"\n0\r\n\r\n",
        H + CHUNKED + b"\r\nd\r\n" + BODY + b"\r\n0\r\n\n",
        H + CHUNKED + b"\r\nd\r\n" + BODY + b"\r\n0\r\ntransfer-encoding: chunked\r\n\r\n",
        H + b": x\r\n" + SIZED,
        H + b"x\r\n" + SIZED,
        H + b"\xffx: y\r\n" + SIZED,
        H + b"x: a\x01b\r\n" + SIZED,
        H + b"x: y\n" + SIZED,
        H + b"x: y\r" + SIZED,
        H + b" host: other\r\n" + SIZED,
        H + SIZED.replace(b"\r\n\r\n", b"\r\n\n"),
        H + SIZED.replace(b"\r\n\r\n", b"\r\n\r"),
        b"POST /v1/x HTTP/1.1\r\n x: y\r\nhost: gw\r\n" + SIZED,
        b"POST /v1/x HTTP/1.1 \r\nhost: gw\r\n" + SIZED,
        b"POST\t/v1/x HTTP/1.1\r\nhost: gw\r\n" + SIZED,
        b"POST /v1/x HTTP/1.2\r\nhost: gw\r\n" + SIZED,
        b"POST /v1/x http/1.1\r\nhost: gw\r\n" + SIZED,
        b"post /v1/x HTTP/1.1\r\nhost: gw\r\n" + SIZED,
        b"POST /v1/x\0 HTTP/1.1\r\nhost: gw\r\n" + SIZED,
        b"POST /v1/x?a=\xff HTTP/1.1\r\nhost: gw\r\n" + SIZED,
    ],
    ids=lambda wire: repr(wire[-60:]),
)
def test_what_two_servers_could_read_differently_is_refused(play, wire: bytes) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain())
        client = await fleet.client()
        client.send(wire)
        status, headers = await client.head()
        assert status == 400
        assert headers["connection"] == "close"
        body = await client.rest()
        assert len(json.loads(body)["error"]["message"].split()) > 3
        assert len(body) == int(headers["content-length"])
        assert not engine.requests

    play(scenario)


@pytest.mark.parametrize(
    "wire",
    [
        H + b"Transfer-Encoding:\tCHUNKED \r\n\r\n" + CHUNKS,
        H + b"content-length:13\t\r\n\r\n" + BODY,
        H + b"content-length: 0013\r\n\r\n" + BODY,
        H + CHUNKED + b"\r\nd;a=b;c\r\n" + BODY + b"\r\n0;x\r\n\r\n",
        H + CHUNKED + b"\r\n0000d\r\n" + BODY + b"\r\n00\r\n\r\n",
        H + CHUNKED + b"\r\nd\r\n" + BODY + b"\r\n0\r\nx-late: y\r\n\r\n",
        H + CHUNKED + b"\r\n" + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n",
        H + b"connection: transfer-encoding, content-length, host, x-request-id\r\n" + SIZED,
        H + b"x: \xff\xfe\r\n" + SIZED,
        b"\r\n" + H + SIZED,
    ],
    ids=lambda wire: repr(wire[-60:]),
)
def test_what_everybody_reads_the_same_goes_on_with_a_length_of_ours(play, wire: bytes) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain(b"good"))
        client = await fleet.client()
        for _ in range(2):
            client.send(wire)
            assert (await client.answer()).body == b"good"
        for seen in engine.requests:
            assert (seen.body, seen.headers["content-length"]) == (BODY, "13")
            assert not {"transfer-encoding", "trailer", "x-late"} & set(seen.headers)

    play(scenario)
