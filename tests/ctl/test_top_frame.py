"""The frame of `llmgw ctl top`: facts and a size in, lines out."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from llmgw.cli.ctl.top_facts import Facts
from llmgw.cli.ctl.top_frame import frame
from llmgw.cli.ctl.top_tables import latency, per_second
from llmgw.messages.admin import ModelView, ProfileView
from llmgw.messages.agent import Gpu
from llmgw.messages.findings import Finding
from llmgw.messages.recent_views import ModelRates
from tests.ctl.run_ctl import ctl
from tests.ctl.scripted import ScriptedBackend, ServedAdmin, node, replica

URL = "http://127.0.0.1:8081"


def facts(backend: ScriptedBackend | None = None, **changes: Any) -> Facts:
    told = backend or ScriptedBackend()
    all_of_it: dict[str, Any] = {
        "at": 1_700_000_100.0,
        "server": told.server(),
        "models": told.models(),
        "rates": told.recent.rates(),
        "nodes": told.nodes(),
        "replicas": told.replicas(),
    }
    return Facts(**(all_of_it | changes))


def drawn(shown: Facts | None, width: int, height: int | None = None, **more: Any) -> list[str]:
    """A frame's lines, which fit."""
    lines = [line.plain for line in frame(shown, URL, width, height, **more)]
    assert [line for line in lines if cell_len(line) > width] == []
    assert height is None or len(lines) <= height, "\n".join(lines)
    return lines


def at(lines: list[str], part: str) -> int:
    """Which line has it first."""
    found = [number for number, line in enumerate(lines) if part in line]
    assert found, f"{part} is not in\n" + "\n".join(lines)
    return found[0]


@pytest.mark.parametrize("width", [30, 40, 80, 160, 300])
def test_problems_come_first_then_models_nodes_replicas_and_routers_at_every_width(width: int) -> None:
    lines = drawn(facts(), width)
    order = [at(lines, part) for part in ("PROBLEMS 2", "MODEL", "NODE", "REPLICA", "ROUTER")]
    assert order == sorted(order)
    assert at(lines, "✕ error node02") < at(lines, "→ check the cable") < at(lines, "▲ warning")


def test_a_wider_terminal_gets_more_columns_and_a_narrower_one_says_which_are_left_out() -> None:
    narrow, usual, wide = drawn(facts(), 40), drawn(facts(), 80), drawn(facts(), 160)
    assert "REQ/S" in narrow[at(narrow, "MODEL")]
    assert "too narrow for: " in narrow[-1]
    assert "TOK/S" in usual[at(usual, "MODEL")]
    assert "NOTES" in usual[at(usual, "NODE  ")]
    for heading in ("AGENT", "ADDRESS"):
        assert heading not in usual[at(usual, "NODE  ")]
        assert heading in wide[at(wide, "NODE  ")]
    assert "silent for 40 s, its shards still answer" in wide[at(wide, "node02  unreachable")]
    assert "too narrow" not in wide[-1]


def test_each_gpu_is_drawn_with_its_use_and_the_hottest_is_told() -> None:
    gpus = [
        Gpu(index=0, uuid="a", name="H", utilization_percent=90, temperature_c=71),
        Gpu(index=1, uuid="b", name="H", usable=False, reason="Xid 79"),
        Gpu(index=2, uuid="c", name="H", utilization_percent=10, temperature_c=40),
    ]
    lines = drawn(facts(nodes=[node("node01", gpus=gpus, gpus_in_use=[0])]), 120)
    assert "■✕□ 1/3      50 %    71 °C" in lines[at(lines, "node01  ready")]
    assert "GPUs 1/3 in use, 1 unusable" in lines[1]
    plain = drawn(facts(nodes=[node("node01", gpus=gpus, gpus_in_use=[0])]), 120, ascii_only=True)
    assert "#x. 1/3" in plain[at(plain, "node01  ready")]
    assert "".join(plain).isascii()


def test_rates_of_models_are_drawn_and_those_in_trouble_come_first() -> None:
    profile = ProfileView(name="default", engine="sim", nodes=1, gpus_per_node=1, wanted=1, ready=1)
    models = [
        ModelView(name="idle", profiles=[profile]),
        ModelView(name="busy", profiles=[profile]),
        ModelView(name="failing", profiles=[profile]),
        ModelView(
            name="lacking", profiles=[ProfileView(name="p", engine="sim", nodes=1, gpus_per_node=1, wanted=2)]
        ),
    ]
    rates = [
        ModelRates(
            model="busy",
            window_s=60,
            requests_per_s=12.34,
            tokens_per_s=1234,
            first_byte_p50_s=0.034,
            first_byte_p95_s=1.2,
            in_flight=7,
        ),
        ModelRates(model="failing", window_s=60, requests_per_s=0.1, errors_per_s=0.1),
    ]
    lines = drawn(facts(models=models, rates=rates), 100)
    order = [at(lines, f"\n{name} ".strip("\n")) for name in ("lacking", "failing", "busy", "idle")]
    assert order == sorted(order)
    assert re.search(r"busy +1/1 +12 +0 +34 ms +1\.2 s +1\.2k +7 +0", lines[at(lines, "busy")])
    old = drawn(facts(models=models, rates=None), 100)
    assert re.search(r"busy +1/1 +-", old[at(old, "busy")]), "an older server tells no rates, which is not 0"


def test_four_hundred_nodes_on_a_small_terminal_are_those_that_matter_and_how_many_more_there_are() -> None:
    backend = ScriptedBackend()
    backend.nodes_known = [node(f"node{number:03d}", gpus_in_use=[], findings=[]) for number in range(400)]
    backend.nodes_known[217] = node("node217", state="lost", reason="silent")
    backend.nodes_known[301] = node(
        "node301", findings=[Finding(check="gpu-lost", severity="error", where="node301", what="GPU 3 is gone")]
    )
    began = time.monotonic()
    lines = drawn(facts(backend), 80, 24)
    took_s = time.monotonic() - began
    assert at(lines, "node217  lost") < at(lines, "node301  ready") < at(lines, "node000  ready")
    shown = sum(bool(re.match(r"node\d", line)) for line in lines)
    assert f"and {400 - shown} more: llmgw ctl nodes" in lines
    assert shown >= 4
    assert "✕ error node301: GPU 3 is gone" in lines
    assert took_s < 1


@pytest.mark.parametrize("height", range(1, 40))
def test_a_frame_fits_whatever_the_terminal_s_height_and_keeps_what_is_wrong_longest(height: int) -> None:
    backend = ScriptedBackend()
    backend.nodes_known += [node(f"node{number:02d}", findings=[]) for number in range(3, 30)]
    backend.replicas_known = [replica(f"r-{number}") for number in range(30)]
    lines = drawn(facts(backend), 80, height)
    if height >= 8:
        assert at(lines, "PROBLEMS 2") < at(lines, "✕ error node02")
    if 8 <= height < 16:
        assert lines[-1].startswith("too short for: ")
    if height >= 17:
        for part in ("MODEL", "NODE", "REPLICA", "ROUTER"):
            at(lines, part)


def test_many_problems_lose_their_least_important_first() -> None:
    backend = ScriptedBackend()
    backend.nodes_known = [
        node(
            f"node{number:02d}",
            findings=[
                Finding(
                    check="gpu-lost" if number == 17 else "work-dir",
                    severity="error" if number == 17 else "warning",
                    where=f"node{number:02d}",
                    what="something is wrong " * 20,
                    remedy=f"mend it {number}",
                )
            ],
        )
        for number in range(40)
    ]
    lines = drawn(facts(backend), 80, 30)
    assert lines[at(lines, "PROBLEMS 41") + 1].startswith("✕ error node17: something is wrong")
    assert lines[at(lines, "PROBLEMS 41") + 2] == "  → mend it 17"
    (more,) = [line for line in lines if line.endswith(" more: llmgw ctl status")]
    assert int(more.split()[1]) == 41 - sum(line.startswith(("✕ error", "▲ warning")) for line in lines)


def test_text_from_outside_moves_no_cursor_and_is_no_markup(served: ServedAdmin, tmp_path: Path) -> None:
    evil = "\x1b[2J\x9b31m\u202e[red]<script>\n漢字漢字漢字漢字漢字漢字漢字漢字"
    served.backend.nodes_known = [
        node(
            "node01",
            state=evil,
            reason=evil,
            version=evil,
            findings=[Finding(check=evil, severity="error", where=evil, what=evil, remedy=evil)],
        )
    ]
    served.backend.replicas_known = [replica(evil, model=evil, fabric=evil, reason=evil)]
    served.backend.models_known = [ModelView(name=evil)]
    done = ctl("top", "--once", home=tmp_path, served=served, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "[red]<script>" in done.stdout
    assert not [char for char in done.stdout if not char.isprintable() and char != "\n"]
    assert max(cell_len(line) for line in done.stdout.splitlines()) <= 200
    drawn(facts(served.backend), 50, 20)


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "-"), (0, "0"), (0.01, "<0.1"), (0.34, "0.3"), (12.3, "12"), (1234, "1.2k"), (54321, "54k")],
)
def test_rates_have_two_figures(value: float | None, words: str) -> None:
    assert per_second(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(None, "-"), (0.0344, "34 ms"), (1.23, "1.2 s"), (95, "95 s"), (190, "3m10s")]
)
def test_latencies_have_their_unit(value: float | None, words: str) -> None:
    assert latency(value) == words
