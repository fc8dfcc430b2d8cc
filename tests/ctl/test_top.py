"""`llmgw ctl top`: one frame into a pipe, and the live one on a terminal of its own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
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
from tests.ctl.run_ctl import PROGRAM, ctl, environment, sentence_of
from tests.ctl.scripted import ScriptedBackend, ServedAdmin, node, replica

URL = "http://127.0.0.1:8081"
WAIT_S = 15.0


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


def test_json_is_one_object_with_each_answer_as_it_came(served: ServedAdmin, tmp_path: Path) -> None:
    for arguments in (["top", "-o", "json"], ["top", "--once", "-o", "json"]):
        told = json.loads(ctl(*arguments, home=tmp_path, served=served).stdout)
        assert list(told) == ["at", "server", "models", "rates", "nodes", "replicas"]
        assert told["nodes"][1]["findings"][0]["remedy"] == "check the cable"
        assert told["rates"][0]["model"] == "org/chat-large"


def test_one_frame_into_a_pipe_is_whole_and_plain(served: ServedAdmin, tmp_path: Path) -> None:
    served.backend.nodes_known = [node(f"node{number:03d}") for number in range(60)]
    done = ctl("top", home=tmp_path, served=served)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\nnode{number:03d} " in done.stdout for number in range(60))
    assert "\x1b" not in done.stdout


def test_without_a_server_one_frame_is_a_sentence(served: ServedAdmin, tmp_path: Path) -> None:
    served.stop()
    assert "nothing listens at" in sentence_of(ctl("top", "--once", home=tmp_path, served=served))


class Terminal:
    """`ctl top` on a terminal of its own; `frames` are what it has drawn since it was started."""

    def __init__(
        self, served: ServedAdmin, home: Path, *arguments: str, size: tuple[int, int], **env: str
    ) -> None:
        self.ours, theirs = pty.openpty()
        self.size(*size)
        self.before = termios.tcgetattr(theirs)
        environ = environment(home, served, TERM="xterm-256color", **env)
        environ.pop("COLUMNS")
        self.process = subprocess.Popen(
            [*PROGRAM, "top", "-i", "0.2", *arguments],
            env=environ,
            cwd=home,
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.theirs = theirs
        self.raw = ""

    def size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self) -> None:
        if select.select([self.ours], [], [], 0.1)[0]:
            self.raw += os.read(self.ours, 65536).decode(errors="replace")

    @property
    def frames(self) -> list[list[str]]:
        screens = re.split(r"\x1b\[H|\x1b\[1;1H", self.raw)[1:]
        return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen).replace("\r", "").split("\n") for screen in screens]

    def until(self, *parts: str, absent: str = "\0", after: int = 0) -> list[str]:
        """The first whole frame from number `after` on that has all of `parts`."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for lines in self.frames[after:-1]:
                text = "\n".join(lines)
                if all(part in text for part in parts) and absent not in text:
                    return lines
            self.read()
            assert self.process.poll() is None, self.raw + self.process.stderr.read()  # type: ignore[union-attr]
        raise AssertionError(f"{parts} did not come:\n" + "\n".join(self.frames[-1]))

    def key(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def ended(self) -> int:
        deadline = time.monotonic() + WAIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
        code = self.process.wait(1)
        self.read()
        assert termios.tcgetattr(self.theirs) == self.before, "the terminal is not as it was"
        assert self.raw.count("\x1b[?1049h") == self.raw.count("\x1b[?1049l"), "the other screen was not left"
        assert self.raw.count("\x1b[?25l") == self.raw.count("\x1b[?25h"), "the cursor was not shown again"
        return code

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait(5)
        if self.process.stderr is not None:
            self.process.stderr.close()
        os.close(self.ours)
        os.close(self.theirs)


@contextlib.contextmanager
def terminal(
    served: ServedAdmin, home: Path, *arguments: str, size: tuple[int, int] = (80, 24), **env: str
) -> Iterator[Terminal]:
    opened = Terminal(served, home, *arguments, size=size, **env)
    try:
        yield opened
    finally:
        opened.close()


def test_it_draws_anew_what_changes_follows_the_window_and_outlives_the_server(
    served: ServedAdmin, tmp_path: Path
) -> None:
    with terminal(served, tmp_path) as screen:
        first = screen.until("q ends it", "✕ error node02", "node01  ready")
        assert max(map(len, first)) <= 80
        assert len(first) <= 24
        served.backend.nodes_known = [node("node01", state="lost", reason="its power was cut")]
        screen.until("node01  lost")
        screen.size(130, 40)
        wide = screen.until("ADDRESS", "its power was cut")
        assert 80 < max(map(len, wide)) <= 130
        screen.size(50, 12)
        screen.until("too short for: ", absent="ADDRESS")
        screen.size(80, 24)
        served.stop()
        away = screen.until("nothing listens at", "asking again. This is ", after=len(screen.frames))
        assert "node01  lost" in "\n".join(away), "what was known stays on the screen"
        served.start()
        screen.until("node01  lost", absent="nothing listens at", after=len(screen.frames))
        screen.key(b"q")
        assert screen.ended() == 0


@pytest.mark.parametrize("how", ["ctrl-c", "SIGTERM"])
def test_it_ends_cleanly_while_the_server_hangs(served: ServedAdmin, tmp_path: Path, how: str) -> None:
    with terminal(served, tmp_path) as screen:
        screen.until("node01  ready")
        # Everything that is asked from now on waits.
        served._loop.call_soon_threadsafe(time.sleep, 3.0)
        began = time.monotonic()
        if how == "ctrl-c":
            os.killpg(screen.process.pid, signal.SIGINT)
        else:
            screen.process.terminate()
        assert screen.ended() == 0
        assert time.monotonic() - began < 2.5


def test_a_token_that_is_refused_ends_it_with_a_sentence(served: ServedAdmin, tmp_path: Path) -> None:
    with terminal(served, tmp_path, LLMGW_CTL_TOKEN="another") as screen:
        assert screen.ended() == 1
        assert screen.process.stderr is not None
        assert re.match(r"error: .* refuses the token of ", screen.process.stderr.read())


def test_no_color_draws_without_colour(served: ServedAdmin, tmp_path: Path) -> None:
    colour = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38|48)(?:;\d+)*m")
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with terminal(served, tmp_path, "--once", **env) as screen:
            screen.process.wait(WAIT_S)
            while select.select([screen.ours], [], [], 0.2)[0]:
                screen.read()
            assert "✕ error node02" in screen.raw
            assert bool(colour.search(screen.raw)) is coloured
