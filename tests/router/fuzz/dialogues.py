"""A request in either dialect and an engine's answer to it, with all that a router may do between the two:
comments before the first byte, translation, errors made even, and figures asked for and taken out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import h11
from hypothesis import strategies as st

from llmgw.router.limits import Limits
from tests.router.fuzz.checks import Message, read_answers
from tests.router.fuzz.wires import cuts, split
from tests.router.fuzz.world import KEY, LATE, FuzzLoop, Pipe, World

LIMITS = Limits()
STREAM_TYPE = b"text/event-stream"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
NEXT = b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n"
DONE = b"data: [DONE]\n\n"
_COMMENT = re.compile(rb"(?<![^\n]): [^\n]*\n\n|event: ping\ndata: [^\n]*\n\n")


@dataclass(frozen=True)
class Asked:
    """What the client wants. `way` is the model's `anthropic`; `keys`: it needs a key, and has one."""

    path: str
    way: str
    version: str
    stream: bool
    usage: bool
    keys: bool
    engines: int

    @property
    def anthropic(self) -> bool:
        return self.path == "/v1/messages"

    @property
    def wire(self) -> bytes:
        body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
        if self.stream:
            body["stream"] = True
        if self.usage and not self.anthropic:
            body["stream_options"] = {"include_usage": True}
        text = json.dumps(body).encode()
        head = b"POST %b HTTP/%b\r\nhost: gw\r\n" % (self.path.encode(), self.version.encode())
        own = b"origin: https://page.example\r\nx-api-key: %b\r\n" % KEY
        return b"%b%bcontent-length: %d\r\n\r\n%b" % (head, own, len(text), text)


@dataclass(frozen=True)
class Said:
    """What the engine answers: bytes, of which `kept` come before `ending`. `kept` None: all."""

    status: int
    type: bytes
    framing: str
    body: bytes
    chunk_cuts: tuple[int, ...]
    kept: int | None
    ending: str

    @property
    def wire(self) -> bytes:
        head = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\n" % (self.status, self.type)
        if self.framing == "length":
            wire = b"%bcontent-length: %d\r\n\r\n%b" % (head, len(self.body), self.body)
        elif self.framing == "close":
            wire = head + b"\r\n" + self.body
        else:
            parts = [part for part in split(self.body, list(self.chunk_cuts)) if part]
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
            wire = b"%btransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % (head, chunks)
        return wire if self.kept is None else wire[: self.kept % len(wire)]

    @property
    def whole(self) -> bool:
        """It comes to its end. Of what ends with the connection nobody can tell."""
        return self.kept is None and (self.framing != "close" or self.ending == "eof")


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _chunk(**fields: Any) -> bytes:
    return _event({"id": "c", **fields})


FIRST = _chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
WORD = _chunk(choices=[{"index": 0, "delta": {"content": 'a "usage":{ word'}, "finish_reason": None}])
CALL = _chunk(
    choices=[
        {
            "index": 0,
            "delta": {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}]},
        }
    ]
)
LAST = _chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
EXTRA = _chunk(choices=[], usage=USAGE)
NATIVE = b"".join(
    b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())
    for kind, fields in (
        ("message_start", {"message": {"id": "x", "usage": {"input_tokens": 3, "output_tokens": 1}}}),
        ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "a"}}),
        ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}),
        ("message_stop", {}),
    )
)
COMPLETION = json.dumps(
    {"id": "c", "choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": USAGE}
).encode()
MESSAGE = b'{"type":"message","content":[],"usage":{"input_tokens":1,"output_tokens":1}}'
STREAMS = [
    FIRST + WORD + LAST + EXTRA + DONE,
    FIRST + CALL + LAST + EXTRA + DONE,
    FIRST + WORD + WORD + LAST + DONE,
    b": hello\n\n" + FIRST + LAST + EXTRA + DONE,
    FIRST + _event({"error": {"message": "in the middle", "code": 500}}) + DONE,
    _event({"error": {"message": "at once", "code": 400}}) + DONE,
    NATIVE,
    b"",
    b"data: no json\n\n",
]
BODIES = [
    COMPLETION,
    MESSAGE,
    b'{"error": {"message": "no", "type": "x", "code": 400}}',
    b'{"object":"error","message":"no\\n","code":123456789012345678901234567890}',
    b'{"detail":[{"loc":["body",1],"msg":"wrong"}]}',
    b'{"detail":"Not Found"}',
    b'{"error":null}',
    b'{"error":"text"}',
    b'"text"',
    b"<html>",
    b"",
    b"\xff\xfe",
    b"[" * 3000 + b"]" * 3000,
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b'{"error":{"message":"\\ud800"}}',
    b"x" * 70_000,
]

askings = st.builds(
    Asked,
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages"]),
    way=st.sampled_from(["auto", "engine", "translate"]),
    version=st.sampled_from(["1.1", "1.1", "1.0"]),
    stream=st.sampled_from([True, True, True, False]),
    usage=st.booleans(),
    keys=st.booleans(),
    engines=st.sampled_from([1, 1, 2, 3]),
)
_shapes = st.one_of(
    st.tuples(st.just(200), st.just(STREAM_TYPE), st.sampled_from(STREAMS)),
    st.tuples(st.just(200), st.just(STREAM_TYPE), st.sampled_from(STREAMS)),
    st.tuples(
        st.sampled_from([200, 200, 201, 307, 400, 401, 404, 405, 429, 500, 501, 503]),
        st.sampled_from([b"application/json", b"text/plain", STREAM_TYPE]),
        st.sampled_from(BODIES),
    ),
)
sayings = st.builds(
    lambda shape, **fields: Said(status=shape[0], type=shape[1], body=shape[2], **fields),
    shape=_shapes,
    framing=st.sampled_from(["chunked", "chunked", "length", "close"]),
    chunk_cuts=cuts.map(tuple),
    kept=st.one_of(st.none(), st.none(), st.integers(0, 3000)),
    ending=st.sampled_from(["open", "eof", "reset"]),
)


async def _played(
    loop: FuzzLoop, asked: Asked, said: list[Said], at: list[int], pings: list[int], leaves_at: int | None
) -> tuple[Pipe, World, list[Said]]:
    """`pings` are the moments at which comments are due; at `leaves_at` the client leaves. A moment is a portion
    of an engine's answer, and 0 the one before it says anything.
    """
    world = World(loop, LIMITS, engines=asked.engines, keys=asked.keys, pings=True, anthropic=asked.way)
    left = list(said)
    used: list[Said] = []
    moment = 0

    def pass_moment() -> None:
        nonlocal moment
        if moment in pings:
            world.service.pings.sweep(LATE)
        if moment == leaves_at:
            world.pipe.reset()
        moment += 1

    def dial(pipe: Pipe) -> None:
        answered = 0

        def answer() -> None:
            nonlocal answered
            count = len(re.findall(rb"POST /v1/[a-z/]+ HTTP/1.1\r\n", pipe.out))
            if count > answered and left:
                answered = count
                used.append(left.pop(0))
                world.speak(reply(pipe, used[-1]))

        pipe.on_write = answer

    async def reply(pipe: Pipe, words: Said) -> None:
        for portion in split(words.wire, at):
            pass_moment()
            await world.settle()
            pipe.arrive(portion)
            await world.settle()
        if words.ending == "eof" or (words.kept is not None and words.ending == "open"):
            pipe.arrive(None)
        elif words.ending == "reset":
            pipe.reset()

    world.dial = dial
    world.pipe.arrive(asked.wire)
    await world.until_still()
    world.pipe.arrive(NEXT)
    await world.until_still()
    await world.pass_deadlines()
    world.check_nothing_is_left()
    return world.pipe, world, used


def check_dialogue(
    loop: FuzzLoop, asked: Asked, said: list[Said], at: list[int], pings: list[int], leaves_at: int | None
) -> None:
    """Whatever comes, the client has a whole answer of its own API, or sees that it has not; nothing is left."""
    pipe, world, used = loop.play(_played(loop, asked, said, at, pings, leaves_at))
    outcomes = list(world.service.telemetry._outcomes)
    assert len(outcomes) == 1, outcomes
    if leaves_at is not None and outcomes[0].status == 499:
        return
    answer, *more = read_answers(pipe.out, ["POST", "GET"], ended=True)
    assert [message.body for message in more] in ([], [b'{"status":"ok"}']), pipe.out
    assert isinstance(answer.head, h11.Response)
    headers = dict(answer.head.headers)
    assert headers[b"access-control-allow-origin"] == b"https://page.example"
    assert headers[b"x-request-id"]
    until_close = not {b"content-length", b"transfer-encoding"} & headers.keys()
    if not more and not until_close and headers.get(b"connection") != b"close":
        ended_early = (b"stream_broken", b"event: error", b"event: message_stop")
        assert not answer.whole or any(word in answer.body for word in ended_early), pipe.out
    if not answer.whole or (until_close and pipe.aborted):
        assert pipe.aborted, pipe.out
        assert outcomes[0].status == 502
        return
    event_stream = headers.get(b"content-type", b"").startswith(STREAM_TYPE)
    if event_stream and answer.head.status_code == 200:
        _check_stream(asked, answer, used[-1] if used else None, outcomes[0].status)
    elif answer.head.status_code >= 400 and len(answer.body) < 60_000 and not event_stream:
        told = json.loads(answer.body)
        assert told["error"]["message"], answer.body
        assert ("type" in told and told["type"] == "error") == asked.anthropic
        assert outcomes[0].status == answer.head.status_code


def _check_stream(asked: Asked, answer: Message, said: Said | None, status: int) -> None:
    body = _COMMENT.sub(b"", answer.body)
    broken = b"stream_broken" in body or (asked.anthropic and b'event: error\ndata: {"type":"error"' in body)
    failed = body.startswith((b'data: {"error"', b"event: error\n"))
    if said is not None and said.framing == "close" and not said.whole and said.type == STREAM_TYPE:
        return  # nobody can tell that it is not whole
    if failed or broken:
        error = [line for line in body.split(b"\n") if line.startswith(b"data: ")][-1]
        if error != b"data: [DONE]":  # the engine's own
            assert json.loads(error[6:])["error"]["message"]
    assert said is not None or failed
    if said is None or said.type != STREAM_TYPE or said.status >= 300:
        assert failed, "an answer that is no stream is told as an error"
        assert status >= 400
    elif not said.whole:
        told = b"message_stop" in body or b"[DONE]" in body
        assert failed or broken or told, "a part looks like the whole"
    elif not asked.anthropic:
        payload = said.body if asked.usage or not asked.stream else said.body.replace(EXTRA, b"")
        assert body == _COMMENT.sub(b"", payload)
        assert status == said.status
    elif said.body == NATIVE and asked.way != "translate" and not broken:
        assert body == NATIVE
