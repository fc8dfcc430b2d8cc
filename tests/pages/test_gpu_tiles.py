"""Nodes as tiles of GPUs: what a cell says, and that a large fleet stays a light page."""

from __future__ import annotations

import pytest

from llmgw.server.pages.gpu_tiles import node_tile
from tests.pages.big_fleet import big_gpu, big_node, gpu_finding

BROKEN = {"usable": False, "reason": "it fell off the bus"}


def strokes(**changes: object) -> dict[str, str]:
    return {stroke.kind: stroke.d for stroke in node_tile(big_node(1, **changes)).strokes}


def test_neighbours_of_one_kind_are_one_stroke_and_each_kind_has_its_own() -> None:
    gpus = [big_gpu("n", at, 1, utilization_percent=busy) for at, busy in enumerate([0, 10, 50, 99])]
    gpus += [big_gpu("n", at, 1) for at in range(4, 8)]
    assert strokes(gpus=gpus) == {
        "u0": "M0 7h10",
        "u1": "M12 7h10",
        "u2": "M24 7h10",
        "u3": "M36 7h10",
        "f": "M48 7h46",
    }


def test_what_keeps_a_gpu_out_of_use_is_a_sign_and_not_only_a_colour() -> None:
    gpus = [
        big_gpu("n", 0, 1, **BROKEN, unusable_kind="broken"),
        big_gpu("n", 1, 1, **BROKEN, unusable_kind="held"),
        big_gpu("n", 2, 1, **BROKEN, unusable_kind="skipped"),
        big_gpu("n", 3, 1, **BROKEN),
    ]
    drawn = strokes(gpus=gpus, gpus_in_use=[0])
    assert drawn["x"] == "M0 7h10M36 7h10", "whose agent does not tell why is broken; in use or not"
    assert {drawn["h"], drawn["s"]} == {"M12 7h10", "M24 7h10"}
    assert drawn["sign"].count("M") == 4
    assert list(drawn)[-1] == "sign", "on top of the others"


def test_a_gpu_in_use_whose_load_is_not_known_is_not_called_idle() -> None:
    gpus = [big_gpu("n", 0, 1, utilization_percent=None)]
    assert strokes(gpus=gpus, gpus_in_use=[0]) == {"u": "M0 7h10"}
    assert "busy" not in node_tile(big_node(1, gpus=gpus, gpus_in_use=[0])).title


def test_more_than_eight_gpus_are_rows_and_none_are_no_cells() -> None:
    gpus = [big_gpu("n", at, 1) for at in range(16)]
    tile = node_tile(big_node(1, gpus=gpus, gpus_in_use=list(range(4, 12))))
    assert tile.rows == 2
    assert {stroke.d for stroke in tile.strokes if stroke.kind == "f"} == {"M0 7h46M48 23h46"}
    empty = node_tile(big_node(1, gpus=[], gpus_in_use=[]))
    assert (empty.rows, empty.strokes, empty.title) == (0, [], "no GPUs")


@pytest.mark.parametrize(
    ("changes", "tone", "note"),
    [
        ({}, "good", ""),
        ({"state": "lost"}, "bad", "lost"),
        ({"state": "unreachable", "draining": True}, "warn", "unreachable"),
        ({"state": "unknown"}, "quiet", "unknown"),
        ({"draining": True}, "warn", "draining"),
        ({"cordoned": True}, "quiet", "cordoned"),
        ({"findings": [gpu_finding(1)]}, "bad", "1 error"),
        ({"findings": [gpu_finding(1)] * 2, "draining": True}, "bad", "2 errors"),
        ({"gpus": [big_gpu("n", 0, 1, **BROKEN)], "findings": [gpu_finding(1)]}, "bad", "1 broken"),
        ({"gpus": [big_gpu("n", 0, 1, **BROKEN, unusable_kind="held")]}, "warn", "1 held"),
    ],
)
def test_the_worst_of_a_node_stands_on_its_tile_in_a_word(
    changes: dict[str, object], tone: str, note: str
) -> None:
    tile = node_tile(big_node(1, **changes))
    assert (tile.tone, tile.note) == (tone, note)
    assert tile.away == ("state" in changes)


def test_the_title_says_all_of_it() -> None:
    gpus = [big_gpu("n", at, 1, utilization_percent=40) for at in range(6)]
    gpus += [big_gpu("n", at, 1, **BROKEN, unusable_kind=kind) for at, kind in ((6, "broken"), (7, "held"))]
    node = big_node(1, gpus=gpus, cordoned=True, draining=True, findings=[gpu_finding(1)])
    assert node_tile(node).title == (
        "8 GPUs: 4 in use (40 % busy), 2 free, 1 broken, 1 held by others; draining; cordoned; gpu-unusable"
    )
