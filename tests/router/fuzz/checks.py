"""What must hold whatever is sent: each check is one case, judged by another parser (h11) than the router has."""

from __future__ import annotations

import re
from dataclasses import dataclass

import h11

from llmgw.router.limits import HEAD_BYTES_MAX, Limits
from tests.router.fuzz.wires import split
from tests.router.fuzz.world import BODY_BYTES_MAX, FuzzLoop, Pipe, World

LIMITS = Limits(body_bytes_max=BODY_BYTES_MAX)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
GOOD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\ngood"
_REQUEST_ID = re.compile(rb"req-[0-9a-f]{24}")


@dataclass
class Message:
    """One message as h11 reads it."""

    head: h11.Request | h11.Response
    body: bytes
    whole: bool


def read_requests(wire: bytes) -> list[Message]:
    """What an engine would take the router's bytes for. Raises h11.RemoteProtocolError."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(wire)
    messages: list[Message] = []
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            messages.append(Message(event, b"", whole=False))
        elif isinstance(event, h11.Data):
            messages[-1].body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            messages[-1].whole = True
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.their_state is not h11.DONE:
                return messages
            connection.start_next_cycle()
        else:
            return messages


def read_answers(wire: bytes, methods: list[str], *, ended: bool) -> list[Message]:
    """What a client that sent requests with these methods would take the router's bytes for."""
    messages: list[Message] = []
    for method in [*methods, *["GET"] * 100]:
        if not wire:
            break
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        connection.send(h11.EndOfMessage())
        connection.receive_data(wire)
        if ended:
            connection.receive_data(b"")
        message: Message | None = None
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError as error:
                if "peer closed" not in str(error):  # which is to be judged by whoever asks
                    raise
                break
            if isinstance(event, h11.Response):
                message = Message(event, b"", whole=False)
                messages.append(message)
            elif isinstance(event, h11.Data):
                assert message is not None
                message.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert message is not None
                message.whole = True
                break
            elif not isinstance(event, h11.InformationalResponse):
                break
        wire = connection.trailing_data[0]
        if message is None or not message.whole:
            break
    return messages


def without_ids(wire: bytes) -> bytes:
    return _REQUEST_ID.sub(b"ID", wire.replace(CONTINUE, b""))


async def _client(loop: FuzzLoop, portions: list[bytes], ending: str) -> tuple[bytes, list[bytes], bool]:
    """Send these, with an engine that always answers: what client and engine got, and whether it was cut."""
    world = World(loop, LIMITS)
    seen: list[bytes] = []

    def dial(pipe: Pipe) -> None:
        answered = 0

        def answer() -> None:
            nonlocal answered
            messages = read_requests(pipe.out)
            if len(messages) > answered and messages[-1].whole:
                answered = len(messages)
                pipe.arrive(GOOD)

        pipe.on_write = answer

    world.dial = dial
    for portion in portions:
        world.pipe.arrive(portion)
        await world.settle()
    await world.until_still()
    if ending == "eof":
        world.pipe.arrive(None)
    elif ending == "reset":
        world.pipe.reset()
    await world.until_still()
    out = world.pipe.out
    await world.pass_deadlines()
    seen = [pipe.out for pipe in world.engines]
    world.check_nothing_is_left()
    return out, seen, world.pipe.aborted


def check_client(loop: FuzzLoop, wire: bytes, cuts: list[int], ending: str) -> None:
    """Whatever a client sends, however split: the engine gets whole requests only, the client whole answers."""
    out, seen, _ = loop.play(_client(loop, split(wire, cuts), ending))
    whole, seen_whole, _ = loop.play(_client(loop, [wire], ending))
    asked = [message for one in seen for message in read_requests(one)]
    for message in asked:
        assert message.whole
        assert isinstance(message.head, h11.Request)
        assert message.head.method == b"POST"
        assert b'"m"' in message.body
        assert not {b"authorization", b"origin", b"x-forwarded-for"} & {name for name, _ in message.head.headers}
    answers = read_answers(out.replace(CONTINUE, b""), _methods(out, wire), ended=True)
    assert all(message.whole for message in answers), out
    assert len(asked) <= len(answers)
    if len(wire) > HEAD_BYTES_MAX:
        return  # what is too large is refused sooner when it comes at once
    assert without_ids(out) == without_ids(whole)
    assert [_REQUEST_ID.sub(b"ID", one) for one in seen] == [_REQUEST_ID.sub(b"ID", one) for one in seen_whole]


def _methods(out: bytes, wire: bytes) -> list[str]:
    """Which of the answers have no body although they name its length."""
    # Only an answer to HEAD has a length and is followed at once by another answer, or by nothing.
    return (
        ["HEAD" if follows else "GET" for follows in _headless(out.replace(CONTINUE, b""))]
        if b"HEAD" in wire
        else []
    )


def _headless(out: bytes) -> list[bool]:
    found: list[bool] = []
    at = 0
    while at < len(out):
        end = out.find(b"\r\n\r\n", at)
        if end < 0:
            break
        length = re.search(rb"content-length: (\d+)", out[at:end])
        size = int(length[1]) if length else 0
        after = end + 4
        bodiless = bool(size) and (after >= len(out) or out.startswith(b"HTTP/1.1 ", after))
        found.append(bodiless)
        at = after if bodiless else after + size
    return found


async def _engine(
    loop: FuzzLoop, wires: list[bytes], cuts: list[int], ending: str, version: bytes, pauses: bool
) -> tuple[bytes, Pipe, int]:
    """Ask as often as there are wires; each is what the engine answers. What the client got."""
    world = World(loop, LIMITS)
    left = list(wires)

    def dial(pipe: Pipe) -> None:
        answered = 0

        def answer() -> None:
            nonlocal answered
            asked = pipe.out.count(b"POST /v1/")
            if asked > answered and left:
                answered = asked
                world.speak(reply(pipe, left.pop(0)))

        pipe.on_write = answer

    async def reply(pipe: Pipe, wire: bytes) -> None:
        for number, portion in enumerate(split(wire, cuts)):
            pipe.arrive(portion)
            if pauses and number % 3 == 1 and not world.pipe.ended:
                world.client.pause_writing()
                await world.settle()
                if not world.pipe.ended:
                    world.client.resume_writing()
            await world.settle()
        if ending == "eof":
            pipe.arrive(None)
        elif ending == "reset":
            pipe.reset()

    world.dial = dial
    request = b'POST /v1/x HTTP/%b\r\nhost: gw\r\ncontent-length: 27\r\n\r\n{"model":"m","stream":true}' % version
    for _ in wires:
        world.pipe.arrive(request)
        await world.until_still()
    await world.pass_deadlines()
    world.check_nothing_is_left()
    return world.pipe.out, world.pipe, len(left)


def check_engine(
    loop: FuzzLoop, wires: list[bytes], cuts: list[int], ending: str, version: bytes, pauses: bool
) -> None:
    """Whatever an engine answers: the client gets whole answers, or sees that one is not."""
    out, pipe, _ = loop.play(_engine(loop, wires, cuts, ending, version, pauses))
    answers = read_answers(out, ["POST"] * len(wires), ended=True)
    assert answers, "nobody is left without an answer"
    for message in answers[:-1]:
        assert message.whole
    if not answers[-1].whole:
        assert pipe.aborted, "what is not whole must not end in good order"
    for message, wire in zip(answers, wires, strict=False):
        _check_body(message, wire, ended=ending == "eof", aborted=pipe.aborted)


def _check_body(message: Message, wire: bytes, *, ended: bool, aborted: bool) -> None:
    """A whole answer of the engine's reached the client as h11 would read it, and no other looks whole."""
    assert isinstance(message.head, h11.Response)
    headers = dict(message.head.headers)
    if b"x-llmgw-replica" not in headers:
        return  # the gateway's own words
    if message.head.status_code >= 400:
        return  # engines' errors are said anew
    try:
        expected = read_answers(wire, ["POST"], ended=ended)
    except h11.RemoteProtocolError:
        return  # h11 is stricter; that nothing broken was passed on is seen from the answer itself
    if not expected:
        return
    true = expected[0]
    broken = b'"code":"stream_broken"' in message.body
    if true.whole and message.whole and not broken:
        assert message.body == true.body
    elif message.whole and not aborted:
        assert broken, "a part looks like the whole"
    assert true.body.startswith(message.body) or broken


def check_engine_split(loop: FuzzLoop, wires: list[bytes], cuts: list[int], version: bytes) -> None:
    """Whole answers reach the client the same however they are split."""
    split_up, _, _ = loop.play(_engine(loop, wires, cuts, "eof", version, pauses=True))
    at_once, _, _ = loop.play(_engine(loop, wires, [], "eof", version, pauses=False))
    assert without_ids(split_up) == without_ids(at_once)
