"""`llmgw inspect fabric|managers|bandwidth`, through its front door, and the drawings."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from llmgw.fabric.dot import draw_dot
from llmgw.fabric.report import analyse
from llmgw.fabric.svg import draw_svg
from tests.bench.fabric import fabric_text
from tests.fabric.generate import fat_tree, ring
from tests.fabric.test_answers import TABLE, smir
from tests.inspecting import inspect, said

FABRIC_KEYS = [
    *("switches", "hcas", "sharp", "routers", "links", "rates", "tiers", "slow", "unnamed_hcas", "self_links"),
    *("disagreeing", "rails", "unread_lines"),
]


def test_a_fabric_has_the_agreed_shape_from_a_file_and_from_a_pipe(tmp_path: Path) -> None:
    text = fat_tree(sharp=True, degraded=1).text()
    (tmp_path / "map.txt").write_text(text)
    report = said("fabric", tmp_path / "map.txt")
    assert report == said("fabric", "-", stdin=text.encode())
    assert list(report)[: len(FABRIC_KEYS)] == FABRIC_KEYS
    assert (report["switches"], report["hcas"], report["sharp"], report["links"]) == (6, 32, 6, 54)
    assert report["rates"] == {"4xNDR": 53, "4xHDR": 1}
    assert report["tiers"] == {"leaf": 4, "spine": 2, "core": 0}
    (slow,) = report["slow"]
    assert list(slow)[:5] == ["a", "b", "rate", "expected", "why"]
    assert slow["a"] == {"guid": "0xb8cef60300100000", "port": 9, "name": "MF0;leaf-1:MQM9700/U1"}


def test_managers_and_bandwidth_have_the_agreed_shapes() -> None:
    managers = said("managers", "-", stdin=smir((0x401, 14, 3)).encode())
    assert list(managers)[:4] == ["master", "standbys", "problems", "answer"]
    assert managers["master"] == {"guid": "0x0000000000000401", "lid": 1, "priority": 14}
    assert (managers["standbys"], managers["problems"], managers["answer"]) == ([], ["no standby"], "ok")
    bandwidth = said("bandwidth", "-", stdin=TABLE.encode())
    assert list(bandwidth)[:4] == ["gbps", "message_bytes", "unit_read", "error"]
    assert list(bandwidth.values())[:4] == [200.0, 65536, "MiB/s", None]
    failed = said("bandwidth", "-", stdin=b" Port number 1 state is Down\n")
    assert (failed["gbps"], failed["error"]) == (None, "Port number 1 state is Down")


def test_people_get_tables() -> None:
    code, out, _ = inspect("fabric", "-", stdin=fat_tree(degraded=1, swap=2).text().encode())
    assert code == 0
    assert "switches     6 (4 leaf, 2 spine)" in out
    assert "4xHDR  4xNDR     200 of 400 Gb/s: its speed is HDR, not NDR; both ends can do 4xNDR" in out
    assert "node0003      mlx5_0 and mlx5_1  swapped: each is on the other's leaf" in out
    assert "PROBLEM: 1 cable runs below the rate" in out
    _, out, _ = inspect("managers", "-", stdin=smir((0x401, 14, 3), (0x501, 12, 2)).encode())
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["0x0000000000000401", "1", "14", "master"],
        ["0x0000000000000501", "2", "12", "standby"],
    ]
    _, out, _ = inspect("bandwidth", "-", stdin=TABLE.encode())
    assert out == "200.00 Gb/s at 65536 bytes (printed in MiB/s)\n"


@pytest.mark.parametrize("what", ["fabric", "managers", "bandwidth"])
def test_what_cannot_be_read_ends_with_a_sentence_and_1(tmp_path: Path, what: str) -> None:
    code, out, err = inspect(what, tmp_path / "nothing.txt")
    assert (code, out) == (1, "")
    assert "nothing.txt cannot be read: No such file or directory" in err
    for stdin in (b"", b"hello\n", bytes(range(256))):
        code, out, err = inspect(what, "-", "-o", "json", stdin=stdin)
        assert (code, err) == (1, "")
        assert json.loads(out)


def test_a_node_that_sees_only_itself_was_read_and_is_a_problem() -> None:
    text = (
        b'vendid=0x2c9\ndevid=0x1021\ncaguid=0xb8e9240300c69438\nCa\t1 "H-b8e9240300c69438"\t\t# "node1 HCA-1"\n'
    )
    report = said("fabric", "-", stdin=text)
    assert (report["switches"], report["hcas"], report["links"]) == (0, 1, 0)
    assert "this node sees only itself" in report["problems"][0]


def test_too_much_is_refused_with_a_sentence_and_what_just_fits_is_read(tmp_path: Path) -> None:
    with (tmp_path / "much.txt").open("wb") as much:
        much.truncate(64 * 1024 * 1024 + 1)
    code, _, err = inspect("fabric", tmp_path / "much.txt")
    assert code == 1
    assert "much.txt is larger than 64 MiB, which no output of ibnetdiscover is" in err
    with (tmp_path / "much.txt").open("wb") as much:
        much.truncate(64 * 1024 * 1024)
    code, out, _ = inspect("fabric", tmp_path / "much.txt", "-o", "json")
    assert (code, json.loads(out)["unread_lines"]) == (1, 1)


def test_drawings_are_written_and_only_one_at_a_time() -> None:
    text = fat_tree(degraded=1).text().encode()
    code, out, _ = inspect("fabric", "-", "--svg", stdin=text)
    assert code == 0
    assert ElementTree.fromstring(out).tag == "{http://www.w3.org/2000/svg}svg"
    code, out, _ = inspect("fabric", "-", "--dot", stdin=text)
    assert code == 0
    assert out.startswith("graph fabric {")
    assert inspect("fabric", "-", "--dot", "--svg", stdin=text)[0] == 2


def test_a_drawing_has_every_switch_every_adapter_and_each_slow_cable_with_a_marker() -> None:
    made = fat_tree(degraded=2, nodes=4)
    made.rerate(made.adapters[0], 1, "2xNDR")
    analysis = analyse(made.text())
    for drawing in (draw_svg(analysis), draw_dot(analysis)):
        for switch in made.switches:
            assert switch.name.removeprefix("MF0;") in drawing
        for adapter in made.adapters:
            assert adapter.name in drawing
        assert drawing.count("4xHDR of 4xNDR") == 2
        assert drawing.count("2xNDR of 4xNDR") >= 1
    svg = draw_svg(analysis)
    assert svg.count('class="slow"') == 3
    assert "prefers-reduced-motion" in svg


def test_names_cannot_leave_a_drawing() -> None:
    made = ring()
    made.switches[0].name = '<script>&\\ " \x07'
    made.adapters[0].name = "]]>\\ mlx5_0"
    analysis = analyse(made.text())
    svg = draw_svg(analysis)
    assert ElementTree.fromstring(svg) is not None
    assert "<script" not in svg
    dot = draw_dot(analysis)
    assert '\\\\ \\"' in dot
    assert "\x07" not in dot


def test_a_thousand_adapters_are_drawn_without_overlapping_switches() -> None:
    made = analyse(fabric_text(1250))
    svg = ElementTree.fromstring(draw_svg(made))
    boxes: dict[str, list[float]] = {}
    for group in svg.iter("{http://www.w3.org/2000/svg}g"):
        if group.get("class") == "switch":
            box = group.find("{http://www.w3.org/2000/svg}rect")
            assert box is not None
            boxes.setdefault(box.get("y", ""), []).append(float(box.get("x", "")))
    assert len(boxes) == 3
    for row in boxes.values():
        row.sort()
        assert all(right - left >= 132 for left, right in itertools.pairwise(row))


def test_a_large_map_has_about_the_shape_of_a_screen_so_that_all_of_it_can_be_looked_at() -> None:
    for adapters in (60, 1250):
        svg = ElementTree.fromstring(draw_svg(analyse(fabric_text(adapters))))
        width, height = float(svg.get("width", "")), float(svg.get("height", ""))
        assert 1 / 3 < width / height < 3


def test_the_cables_of_a_wide_ring_bow_below_the_head_of_the_drawing() -> None:
    svg = draw_svg(analyse(ring(switches=20).text()))
    shifted = re.search(r"translate\(\S+ (\S+)\)", svg)
    assert shifted is not None
    curves = re.findall(r'class="cable" d="M\S+ (\S+)C\S+ (\S+) \S+ (\S+) \S+ (\S+)"', svg)
    assert len(curves) == 20
    for y in curves:
        first, out, into, last = map(float, y)
        highest = (first + 3 * out + 3 * into + last) / 8
        assert highest + float(shifted[1]) > 60, "the legend's line is there"


def test_the_example_has_what_its_document_says() -> None:
    report = said("fabric", Path(__file__).parents[2] / "examples" / "ibnetdiscover.txt")
    assert (report["switches"], report["hcas"], report["unread_lines"]) == (4, 16, 0)
    assert [(slow["rate"], slow["expected"]) for slow in report["slow"]] == [("4xHDR", "4xNDR")]
    assert [swap["node"] for swap in report["rail_swaps"]] == ["node0006"]


def test_what_has_changed_since_an_earlier_map_is_listed(tmp_path: Path) -> None:
    earlier, now = tmp_path / "earlier.txt", tmp_path / "now.txt"
    earlier.write_text(fat_tree().text())
    now.write_text(fat_tree(degraded=1).text())
    assert said("fabric", now)["changes"] is None
    assert said("fabric", earlier, "--before", earlier)["changes"] == []
    (change,) = said("fabric", now, "--before", earlier)["changes"]
    assert (change["kind"], change["before"], change["after"]) == ("rate changed", "4xNDR", "4xHDR")
    code, out, _ = inspect("fabric", now, "--before", earlier)
    assert code == 0
    assert "rate changed" in out
    assert "nothing has changed" in inspect("fabric", now, "--before", now)[1]


def test_an_earlier_map_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "now.txt").write_text(fat_tree().text())
    (tmp_path / "empty.txt").write_text("")
    code, _, err = inspect("fabric", tmp_path / "now.txt", "--before", tmp_path / "empty.txt")
    assert (code, "there is no map in" in err) == (1, True)
    assert inspect("fabric", "-", "--before", "-", stdin=b"x")[0] == 2
    assert inspect("fabric", tmp_path / "now.txt", "--before", tmp_path / "now.txt", "--svg")[0] == 2


HOSTILE = "\x1b]0;owned\x07\x1b[31mleaf\x00\u202e\x9b2J<script>" + "L" * 3000


def acting(out: str) -> list[str]:
    """Characters that a terminal would act on."""
    return [char for char in out if not char.isprintable() and char not in "\n\t"]


def test_no_name_and_no_line_of_a_map_reaches_the_terminal_as_a_command() -> None:
    made = fat_tree(degraded=1)
    made.switches[0].name = HOSTILE
    made.adapters[0].name = f"{HOSTILE} mlx5_0"
    saved = f"{HOSTILE}\nibwarn: [1] {HOSTILE}\n{made.text()}".encode()
    for arguments in ((), ("-o", "json"), ("--svg",), ("--dot",)):
        code, out, _ = inspect("fabric", "-", *arguments, stdin=saved)
        assert code == 0
        assert acting(out) == []
        assert "L" * 200 not in out
    for kind in ("managers", "bandwidth"):
        for form in ("table", "json"):
            _, out, _ = inspect(kind, "-", "-o", form, stdin=saved)
            assert out
            assert acting(out) == []
