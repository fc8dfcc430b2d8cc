"""Conversations come back to the endpoint that has their beginning in its cache: a ring with bounded loads.

Pure. A request's point on the ring follows from how its conversation begins, the same in every router and after
every restart; it goes to the next endpoint on the ring that has room (Mirrokni, Thorup and Zadimoghaddam,
"Consistent Hashing with Bounded Loads", 2017).
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from bisect import bisect_right
from collections.abc import Collection, Sequence

import msgspec

from llmgw.router.endpoint import Endpoint
from llmgw.router.fields import Fields

SHARE_MAX = 1.25
"""No endpoint gets more than so many times its share, rounded up to a whole request."""
POINTS = 64
"""Of an endpoint of mean capacity: parts of the ring differ by about an eighth then."""
POINTS_MAX = 1024
# Of a prompt that is one text: what grows behind it, turn by turn, must not move it.
OPENING_BYTES = 1024
# A first message beyond this is not looked for its end.
MESSAGES_BYTES_MAX = 256 * 1024
LIKELY_BYTES = 4 * 1024

_MASK = 2**64 - 1
_SPREAD = 0x9E3779B97F4A7C15  # 2^64 by the golden ratio (Knuth, The Art of Computer Programming, 6.4)
# What is no UTF-8 must not make another beginning of one and the same.
_AS_IT_CAME = "surrogateescape"
_decode_at = json.JSONDecoder().raw_decode


class _Message(msgspec.Struct, gc=False):
    role: object = None


_decode_messages = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_message = msgspec.json.Decoder(_Message).decode


class Ring:
    """The endpoints of one model on a ring of 2^64 points."""

    __slots__ = ("_endpoints", "_owners", "_points", "made_of")

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = list(endpoints)
        self.made_of = ring_key(endpoints)
        """The same for every ring that would be made of the same."""
        mean = sum(endpoint.capacity for endpoint in endpoints) / max(1, len(endpoints))
        least = min((endpoint.capacity for endpoint in endpoints), default=1.0) / mean
        most = max((endpoint.capacity for endpoint in endpoints), default=1.0) / mean
        # A small part needs as many points as any other to be near its size; the others then have more.
        points = POINTS if least >= 0.5 else max(POINTS, min(POINTS / least, POINTS_MAX / most))
        marks = sorted(
            (point, index)
            for index, endpoint in enumerate(endpoints)
            for point in _points(endpoint.id, round(points * endpoint.capacity / mean))
        )
        self._points = [point for point, _ in marks]
        self._owners = [self._endpoints[index] for _, index in marks]

    def find(self, point: int, now: float, tried: Collection[Endpoint]) -> Endpoint | None:
        """The first usable endpoint from there on that is below SHARE_MAX of its share; None: none is usable.

        One below it there always is: were all at theirs, they would have more requests than there are.
        """
        owners = self._owners
        count = len(owners)
        at = bisect_right(self._points, point)
        owner = owners[at % count] if count else None
        if owner is not None and not (owner.outstanding or owner.failure_load or tried) and owner.usable(now):
            return owner  # one request is never above its share
        total = 1.0
        weights = 0.0
        for endpoint in self._endpoints:
            # As `usable`, which need not be called while no breaker is open.
            if endpoint.outstanding >= endpoint.concurrency or (tried and endpoint in tried):
                continue
            if endpoint.breaker.open_until and not endpoint.breaker.available(now):
                continue
            total += endpoint.load(now) if endpoint.failure_load else endpoint.outstanding
            weights += endpoint.capacity if endpoint.slow_since is None else endpoint.weight(now)
        if not weights:
            return None
        a_weight = SHARE_MAX * total / weights
        passed: set[Endpoint] = set()
        for step in range(at, at + count):
            owner = owners[step % count]
            if owner in passed:
                continue
            room = owner.load(now) + 1.0 <= math.ceil(a_weight * owner.weight(now))
            if room and owner.usable(now) and owner not in tried:
                return owner
            passed.add(owner)
        return None


def ring_key(endpoints: Sequence[Endpoint]) -> list[tuple[Endpoint, float]]:
    """What a ring depends on."""
    return [(endpoint, endpoint.capacity) for endpoint in endpoints]


def point_of(fields: Fields, session: bytes) -> int | None:
    """`conversation_point` of a request's body and of what its client calls the conversation."""
    messages = _given(fields.messages)
    return conversation_point(
        session=session,
        user=_given(fields.user),
        messages=messages,
        prompt=b"" if messages else _given(fields.prompt) or _given(fields.input),
    )


def _given(raw: msgspec.Raw) -> bytes:
    """A value as it came. Clients that name what they have nothing of call it null."""
    value = bytes(raw)
    return b"" if value == b"null" else value


def conversation_point(
    *, session: bytes, user: bytes, messages: bytes, prompt: bytes, headroom: int = MESSAGES_BYTES_MAX
) -> int | None:
    """Where a conversation stands on the ring; None for a request without anything to tell it by.

    A session's name is enough by itself. Else it is told by its user and by how it begins: `messages` (a JSON
    array, as it came) up to the end of the first message of the role `user`, so that a system prompt which all
    share does not send them all to one place; or the first OPENING_BYTES of `prompt` (any JSON value).
    `headroom` is how much of the messages is looked at.
    """
    if session:
        return _spread(zlib.crc32(session))
    opening = _opening(messages, headroom) if messages else prompt[:OPENING_BYTES]
    if not opening and not user:
        return None
    return _spread(zlib.crc32(opening, zlib.crc32(user)))


def _opening(messages: bytes, headroom: int) -> bytes:
    opening = None
    if len(messages) <= min(headroom, LIKELY_BYTES):
        opening = _short_opening(messages)
        if opening is not None:
            return opening
    if headroom > LIKELY_BYTES:  # of a long conversation the beginning is enough, nearly always
        opening = _up_to_the_user(messages[:LIKELY_BYTES].decode("utf-8", _AS_IT_CAME))
    if opening is None and (headroom <= LIKELY_BYTES or len(messages) > LIKELY_BYTES):
        opening = _up_to_the_user(messages[:headroom].decode("utf-8", _AS_IT_CAME))
    # No such message, none that ends within the headroom, or no array: its first bytes have to do.
    return messages[:OPENING_BYTES] if opening is None else opening


def _short_opening(messages: bytes) -> bytes | None:
    """As `_up_to_the_user`, for an array that is whole, in a third of the time: no message is built."""
    at = 0
    try:
        for raw in _decode_messages(messages):
            message = bytes(raw)
            # Before it stand a bracket, commas and spaces only.
            at = messages.find(message, at) + len(message)
            if message[:1] == b"{" and _decode_message(message).role == "user":
                return messages[:at]
    except (msgspec.DecodeError, RecursionError):
        pass
    return None


def _up_to_the_user(text: str) -> bytes | None:
    """A JSON array up to the end of its first message of the role `user`; None where none ends in it."""
    at = 1  # behind the bracket
    try:
        while True:
            while text[at] in " \t\r\n,":
                at += 1
            message, at = _decode_at(text, at)
            if isinstance(message, dict) and message.get("role") == "user":
                return text[:at].encode("utf-8", _AS_IT_CAME)
    except (ValueError, IndexError, RecursionError):
        return None


def _points(name: str, count: int) -> list[int]:
    """So many points, at least one and at most POINTS_MAX, that follow from the name alone."""
    points: list[int] = []
    block = 0
    wanted = min(max(count, 1), POINTS_MAX)
    while len(points) < wanted:
        digest = hashlib.blake2b(f"{block} {name}".encode()).digest()
        points += struct.unpack(">8Q", digest)
        block += 1
    return points[:wanted]


def _spread(checksum: int) -> int:
    return (checksum * _SPREAD) & _MASK
