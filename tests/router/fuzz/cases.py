"""The cases as Hypothesis draws them, with a count of how many were played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.router.fuzz.checks import check_client, check_engine, check_engine_split
from tests.router.fuzz.dialogues import Asked, Said, askings, check_dialogue, sayings
from tests.router.fuzz.wires import answers, cuts, damage, requests
from tests.router.fuzz.world import FuzzLoop

endings = st.sampled_from(["open", "eof", "reset"])
versions = st.sampled_from([b"1.1", b"1.1", b"1.0"])
wires_of_clients = st.lists(requests(), min_size=1, max_size=4).map(b"".join)
wires_of_engines = st.lists(answers(), min_size=1, max_size=3)

played = 0


def _counted(check: Callable[..., None], *arguments: Any) -> None:
    global played
    played += 1
    check(*arguments)


def cases(examples: int, *, repeatable: bool) -> list[Callable[[], None]]:
    """One function for each kind of case; each plays so many. `repeatable` ones are the same at every call."""
    loop = FuzzLoop()
    given_so = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=repeatable,
        suppress_health_check=list(HealthCheck),
    )

    @given_so
    @given(wires_of_clients, cuts, endings)
    def whole_requests(wire: bytes, at: list[int], ending: str) -> None:
        _counted(check_client, loop, wire, at, ending)

    @given_so
    @given(wires_of_clients.flatmap(damage), cuts, endings)
    def damaged_requests(wire: bytes, at: list[int], ending: str) -> None:
        _counted(check_client, loop, wire, at, ending)

    @given_so
    @given(st.binary(max_size=300), cuts, endings)
    def no_requests(wire: bytes, at: list[int], ending: str) -> None:
        _counted(check_client, loop, wire, at, ending)

    @given_so
    @given(wires_of_engines, cuts, versions)
    def whole_answers(wires: list[bytes], at: list[int], version: bytes) -> None:
        _counted(check_engine_split, loop, wires, at, version)

    @given_so
    @given(wires_of_engines, st.data(), cuts, endings, versions, st.booleans())
    def damaged_answers(
        wires: list[bytes], data: st.DataObject, at: list[int], ending: str, version: bytes, pauses: bool
    ) -> None:
        wires = [data.draw(damage(wire)) for wire in wires]
        _counted(check_engine, loop, wires, at, ending, version, pauses)

    @given_so
    @given(st.lists(st.binary(max_size=200), min_size=1, max_size=2), cuts, endings, versions, st.booleans())
    def no_answers(wires: list[bytes], at: list[int], ending: str, version: bytes, pauses: bool) -> None:
        _counted(check_engine, loop, wires, at, ending, version, pauses)

    @given_so
    @given(
        askings,
        st.lists(sayings, min_size=1, max_size=3),
        cuts,
        st.lists(st.integers(0, 6), max_size=3),
        st.one_of(st.none(), st.none(), st.integers(0, 8)),
    )
    def dialogues(asked: Asked, said: list[Said], at: list[int], pings: list[int], leaves_at: int | None) -> None:
        _counted(check_dialogue, loop, asked, said, at, pings, leaves_at)

    return [dialogues, whole_requests, damaged_requests, no_requests, whole_answers, damaged_answers, no_answers]
