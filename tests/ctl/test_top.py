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

import pytest

from tests.ctl.run_ctl import PROGRAM, ctl, environment, sentence_of
from tests.ctl.scripted import ServedAdmin, node

WAIT_S = 45.0


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
