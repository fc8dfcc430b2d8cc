"""Findings as the overview tells them: the worst first, the many of one kind once, each where it is."""

from __future__ import annotations

import pytest

from llmgw.messages.findings import Finding, Severity
from llmgw.messages.topology import FabricSummary
from llmgw.server.pages.places import Place, Places
from llmgw.server.pages.problems import LISTED_MAX, group_problems
from llmgw.server.pages.sayings import pieces
from tests.ctl.scripted import ScriptedBackend, node

BACKEND = ScriptedBackend()
FABRICS = [
    FabricSummary(id="0x1", names=["ib-a"], nodes=[]),
    FabricSummary(id="0x2", names=["ib-b", "ib-c"], nodes=[]),
    FabricSummary(id="0x3", names=["twice"], nodes=[]),
    FabricSummary(id="0x4", names=["twice"], nodes=[]),
]


def places(nodes: int = 0) -> Places:
    known = [*BACKEND.nodes_known, *(node(f"gpu{number}") for number in range(nodes))]
    return Places.of(known, BACKEND.replicas_known, BACKEND.models_known, FABRICS)


def finding(
    where: str, what: str = "it is so", check: str = "some-check", severity: Severity = "error"
) -> Finding:
    return Finding(check=check, severity=severity, where=where, what=what, why="w", remedy="r")


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("node01", Place("node01", "", "/admin/nodes/node01", "NODE")),
        ("node01 mlx5_1", Place("node01", "mlx5_1", "/admin/nodes/node01", "NODE")),
        ("node011 mlx5_1", Place("node011 mlx5_1")),
        ("ib-a", Place("ib-a", "", "/admin/fabrics/0x1", "FABRIC")),
        ("ib-b, ib-c", Place("ib-b, ib-c", "", "/admin/fabrics/0x2", "FABRIC")),
        ("ib-c", Place("ib-c", "", "/admin/fabrics/0x2", "FABRIC")),
        ("twice", Place("twice", "", "/admin/fabrics", "FABRIC")),
        ("org/chat-large/default", Place("org/chat-large/default", "", "/admin/models/org/chat-large", "MODEL")),
        ("org/chat-large", Place("org/chat-large", "", "/admin/models/org/chat-large", "MODEL")),
        ("chat-small-3c4d", Place("chat-small-3c4d", "", "/admin/replicas/chat-small-3c4d", "REPLICA")),
        ("/etc/llmgw/server.pem", Place("/etc/llmgw/server.pem")),
        ("", Place("")),
    ],
)
def test_a_place_has_the_page_of_what_it_names(where: str, found: Place) -> None:
    assert places().find(where) == found


def test_errors_come_before_warnings_and_those_before_notes() -> None:
    severities: list[Severity] = ["info", "warning", "error", "warning"]
    found = [finding("x", f"{at}", f"check-{at}", severity) for at, severity in enumerate(severities)]
    told = group_problems(found, places())
    assert [(problem.severity, problem.what) for problem in told] == [
        ("error", "2"),
        ("warning", "1"),
        ("warning", "3"),
        ("info", "0"),
    ]


def test_few_of_a_kind_are_told_in_full_and_their_place_only_once() -> None:
    found = [finding(f"node0{at}", f"node0{at} is lost: silent") for at in (1, 2)]
    assert [(problem.what, problem.count) for problem in group_problems(found, places())] == [
        ("is lost: silent", 1),
        ("is lost: silent", 1),
    ]


def test_many_that_differ_in_their_place_alone_are_one_with_a_remedy_for_any_of_them() -> None:
    found = [
        Finding(
            check="node-lost",
            severity="error",
            where=f"gpu{at} GPU 3",
            what=f"GPU 3 of gpu{at} is gone",
            why=f"gpu{at} has one less",
            remedy=f"`llmgw ctl drain gpu{at}` first",
        )
        for at in range(300)
    ]
    (problem,) = group_problems(found, places(300))
    assert problem.alike
    assert problem.what == "… of NODE is gone"
    assert problem.why == "NODE has one less"
    assert problem.remedy == "`llmgw ctl drain NODE` first", "to be typed with any of the places"
    assert (problem.count, len(problem.listed), problem.left_out) == (300, LISTED_MAX, 300 - LISTED_MAX)


def test_a_longer_name_that_begins_alike_is_not_taken_for_the_place() -> None:
    others = [finding(f"gpu{at}", f"gpu{at}-b, gpu1{at} and gpu{at} clash") for at in range(5)]
    (problem,) = group_problems(others, places(5))
    assert not problem.alike, "the other names differ"
    assert problem.what == "gpu0-b, gpu10 and gpu0 clash"


def test_many_that_say_different_things_are_listed_each_with_its_own_words() -> None:
    found = [finding(f"gpu{at}", f"gpu{at} was heard {at} s ago") for at in range(5)]
    (problem,) = group_problems(found, places(5))
    assert not problem.alike
    assert [told.what for told in problem.listed] == [f"was heard {at} s ago" for at in range(5)]


def test_a_check_of_two_severities_is_two_problems() -> None:
    found = [finding(f"gpu{at}", severity="error" if at % 2 else "warning") for at in range(10)]
    assert [(problem.severity, problem.count) for problem in group_problems(found, places(10))] == [
        ("error", 5),
        ("warning", 5),
    ]


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("`llmgw ctl drain node01`, then look at it", ["llmgw ctl drain node01"]),
        ("look at it (ps -fp 812) and end it (soon)", ["ps -fp 812"]),
        ("run `a` or (systemctl start opensm)", ["a", "systemctl start opensm"]),
        ("an unpaired ` stays", []),
        ("nothing to type (infiniband-diags)", []),
        ("", []),
    ],
)
def test_what_is_to_be_typed_stands_apart(text: str, commands: list[str]) -> None:
    assert [piece for command, piece in pieces(text) if command] == commands
    assert "".join(piece for _, piece in pieces(text)) == text.replace("`", "") or "unpaired" in text
