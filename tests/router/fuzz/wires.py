"""What is sent: whole messages, what becomes of them when they are damaged, and where they are cut."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

# What two parsers may see differently, or what ends something early.
TOKENS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b":",
    b"\t",
    b"0\r\n\r\n",
    b"\r\n\r\n",
    b"content-length: 5\r\n",
    b"content-length: 0\r\n",
    b"Content-Length : 3\r\n",
    b"transfer-encoding: chunked\r\n",
    b"transfer-encoding: gzip\r\n",
    b"connection: close\r\n",
    b"connection: upgrade\r\nupgrade: h2c\r\n",
    b"expect: 100-continue\r\n",
    b"content-encoding: gzip\r\n",
    b" folded\r\n",
    b"ffffffffffffffff\r\n",
    b"8000000000000000\r\n",
    b"-1\r\n",
    b"5;a=b\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.0",
    b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\n",
    b"\xff\xfe",
    b"A" * 200,
    b"x: " + b"y" * 70_000 + b"\r\n",
]

payloads = st.lists(
    st.sampled_from([b"a", b"\r\n", b"0\r\n\r\n", b"data: x\n\n", b"{}"]) | st.binary(max_size=30), max_size=4
)
cuts = st.lists(st.integers(0, 3000), max_size=25)
extra_headers = st.lists(
    st.sampled_from(
        [
            b"x-a: b\r\n",
            b"Connection: keep-alive\r\n",
            b"Connection: x-a\r\n",
            b"Accept: */*\r\n",
            b"Origin: https://page.example\r\n",
            b"X-Forwarded-For: 1.2.3.4\r\n",
            b"x-request-id: mine\r\n",
            b"authorization: Bearer x\r\n",
        ]
    ),
    max_size=3,
).map(b"".join)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bodies of requests, most of which name the model that there is."""
    name = draw(st.sampled_from([b"m", b"m", b"m", b"other", b""]))
    stream = draw(st.sampled_from([b"", b',"stream":true', b',"stream":"yes"']))
    filler = draw(st.sampled_from([b"", b',"x":"' + b"y" * 50 + b'"', b',"n":[[1],{"model":"z"}]']))
    body = b'{"model":"%b"%b%b}' % (name, stream, filler)
    return draw(st.sampled_from([body, body, body, body, b"not json", b"", b"[" * 50]))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One whole request that anybody would take."""
    headers = draw(extra_headers)
    kind = draw(
        st.sampled_from(["length", "length", "chunked", "get", "head", "options", "expect", "http10", "upgrade"])
    )
    if kind in ("get", "head", "options"):
        path = draw(st.sampled_from([b"/health", b"/v1/models", b"/v1/models/m", b"/", b"/v1/chat/completions"]))
        return b"%b %b HTTP/1.1\r\nhost: gw\r\n%b\r\n" % (kind.upper().encode(), path, headers)
    body = draw(bodies())
    path = draw(st.sampled_from([b"/v1/chat/completions", b"/v1/completions?a=b", b"/v1/../x"]))
    version = b"1.0" if kind == "http10" else b"1.1"
    head = b"POST %b HTTP/%b\r\nhost: gw\r\n%b" % (path, version, headers)
    if kind == "chunked":
        cut = draw(st.integers(0, len(body)))
        parts = [part for part in (body[:cut], body[cut:]) if part]
        extension = draw(st.sampled_from([b"", b";a=b"]))
        chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
        trailer = draw(st.sampled_from([b"", b"x-t: 1\r\n"]))
        return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n"
    if kind == "expect":
        head += b"Expect: 100-continue\r\n"
    if kind == "upgrade":
        head += b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """One whole answer of an engine."""
    interim = draw(
        st.sampled_from([b"", b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 x\r\nlink: y\r\n\r\n"])
    )
    status = draw(st.sampled_from([200, 200, 200, 404, 500, 503, 204, 304]))
    kind = draw(st.sampled_from(["length", "chunked", "chunked", "close"]))
    event_stream = draw(
        st.sampled_from([b"", b"Content-Type: text/event-stream\r\n", b"content-type: application/json\r\n"])
    )
    headers = draw(st.sampled_from([b"", b"x-a: b\r\n", b"Connection: close\r\n", b"keep-alive: timeout=5\r\n"]))
    parts = draw(payloads)
    body = b"".join(parts)
    head = interim + b"HTTP/1.1 %d X\r\n%b%b" % (status, event_stream, headers)
    if status in (204, 304):
        return head + b"\r\n"
    if kind == "length":
        return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    if kind == "close":
        return head + b"\r\n" + body
    extension = draw(st.sampled_from([b"", b";a=b"]))
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts if part)
    trailer = draw(st.sampled_from([b"", b"x-t: 1\r\n"]))
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n"


@st.composite
def damage(draw: st.DrawFn, wire: bytes) -> bytes:
    """The same bytes with something put in, taken out, doubled, replaced, or cut off."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(wire)))
        taken = draw(st.integers(0, 40))
        match draw(st.sampled_from(["in", "in", "out", "double", "replace", "junk", "cut"])):
            case "in":
                wire = wire[:at] + draw(st.sampled_from(TOKENS)) + wire[at:]
            case "out":
                wire = wire[:at] + wire[at + taken :]
            case "double":
                wire = wire[: at + taken] + wire[at:]
            case "replace":
                wire = wire[:at] + draw(st.sampled_from(TOKENS)) + wire[at + taken :]
            case "junk":
                wire = wire[:at] + draw(st.binary(max_size=40)) + wire[at:]
            case _:
                wire = wire[:at]
    return wire


def split(wire: bytes, at: list[int]) -> list[bytes]:
    """The portions that a wire arrives in; places count modulo its length."""
    places = sorted({0, len(wire), *(place % (len(wire) + 1) for place in at)})
    return [wire[start:end] for start, end in itertools.pairwise(places)]
