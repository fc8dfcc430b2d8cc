"""`llmgw demo`, as somebody new to it runs it: with a terminal and without, two at a time, ended in every way."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.endtoend.conftest import Running, until

QUICK = ["--load-s", "0.2", "--tokens-per-s", "200"]


def belonging_to(folder: str) -> list[psutil.Process]:
    """Every process that names the folder in its command line, environment or working directory."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.cwd(), *process.environ().values()]
        except (psutil.Error, OSError):
            continue
        if any(folder in word for word in words):
            found.append(process)
    return found


class Demo:
    """`llmgw demo` without a terminal, its temporary files below a folder of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        folder.mkdir()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        (folder / "home").mkdir()
        env = {"TMPDIR": str(self.temporary), "HOME": str(folder / "home"), "NO_COLOR": "1"}
        self.running = Running.llmgw("demo", *QUICK, *arguments, log=folder / "log", env=env, cwd=folder)
        self.folder = str(folder)

    def wait_ready(self, replicas: int = 4) -> None:
        until(lambda: len(self.ready()) >= replicas or self.ended, 60, lambda: self.output)
        assert not self.ended, self.output

    def ready(self, kind: str = "(?:big|small)") -> set[str]:
        """Replicas that were told to be ready."""
        return set(re.findall(rf"^({kind}-\w+) ready: ", self.output, re.MULTILINE))

    @property
    def output(self) -> str:
        return self.running.output

    @property
    def api(self) -> str:
        return re.findall(r"^API (http://\S+)/v1 ", self.output, re.MULTILINE)[0]

    @property
    def state(self) -> str:
        return re.findall(r" state (\S+)$", self.output, re.MULTILINE)[0]

    @property
    def ended(self) -> bool:
        return self.running.process.poll() is not None

    def curl(self) -> str:
        """Run the printed curl line; what it answers."""
        (line,) = [line for line in self.output.splitlines() if line.startswith("curl ")]
        done = subprocess.run(
            [*shlex.split(line), "--silent", "--show-error", "--noproxy", "*", "--max-time", "15"],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr}{done.stdout}{self.output}"
        return done.stdout

    def end(self, number: signal.Signals) -> int:
        os.kill(self.running.process.pid, number)
        return self.running.process.wait(30)

    def close(self) -> None:
        with self.running:
            if not self.ended:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.end(signal.SIGTERM)
        for process in belonging_to(self.folder):
            with contextlib.suppress(psutil.Error):
                process.kill()


@contextlib.contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[Demo]:
    running = Demo(folder, *arguments)
    try:
        yield running
    finally:
        running.close()


def nothing_is_left(demo: Demo) -> None:
    left = belonging_to(demo.folder)
    assert not left, [process.cmdline() for process in left if process.is_running()]
    assert list(demo.temporary.iterdir()) == []


def test_two_demos_at_a_time_serve_by_the_printed_line_and_leave_nothing(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with demo(tmp_path / "first") as first, demo(tmp_path / "second") as second:
        for each in (first, second):
            each.wait_ready()
            answer = each.curl()
            assert answer.rstrip().endswith("data: [DONE]"), answer
        assert {process.pid for process in belonging_to(first.folder)}.isdisjoint(
            process.pid for process in belonging_to(second.folder)
        )
        assert first.end(signal.SIGINT) == 0
        nothing_is_left(first)
        assert second.curl().rstrip().endswith("data: [DONE]"), "the other one goes on"
        assert second.end(signal.SIGHUP) == 0
        nothing_is_left(second)


def test_a_demo_that_is_told_to_end_while_it_comes_up_leaves_nothing(tmp_path: Path) -> None:
    with demo(tmp_path / "demo") as early:
        until(lambda: len(belonging_to(early.folder)) > 2, 20)
        assert early.end(signal.SIGTERM) == 0
        nothing_is_left(early)


def test_a_demo_whose_server_was_killed_still_ends_everything(tmp_path: Path) -> None:
    with demo(tmp_path / "demo") as broken:
        broken.wait_ready(2)
        (server,) = [
            process for process in belonging_to(broken.folder) if process.cmdline()[2:4] == ["llmgw", "server"]
        ]
        server.kill()
        until(lambda: "the server does not answer" in broken.output, 10)
        # Twice, as an impatient person does.
        os.kill(broken.running.process.pid, signal.SIGINT)
        assert broken.end(signal.SIGINT) == 0
        nothing_is_left(broken)


def test_a_terminal_gets_a_live_view(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "home").mkdir()
    child, terminal = pty.fork()
    if child == 0:
        env = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "HOME": str(tmp_path / "home"), "TERM": "xterm"}
        os.execve(sys.executable, [sys.executable, "-m", "llmgw", "demo", *QUICK], env)
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 80, 160, 0, 0))
        seen = ""
        deadline = time.monotonic() + 60
        wanted = [f"node0{number}" for number in range(1, 5)] + ["ib-a", "ib-b", "curl -N http://", "Ctrl-C ends"]
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.5)[0]:
                seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(terminal, 65536).decode(errors="replace"))
            # A replica's row, ready and on two nodes.
            if all(word in seen for word in wanted) and re.search(r"big-\S+ +│ ● ready", seen):
                break
        else:
            pytest.fail(seen[-5000:])
        os.write(terminal, b"\x03")
        ended: list[int] = []

        def has_ended() -> bool:
            if select.select([terminal], [], [], 0)[0]:
                with contextlib.suppress(OSError):
                    os.read(terminal, 65536)
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                ended.append(os.waitstatus_to_exitcode(status))
            return bool(pid)

        until(has_ended, 30)
        assert ended == [0]
        assert belonging_to(str(tmp_path)) == []
    finally:
        for process in belonging_to(str(tmp_path)):
            with contextlib.suppress(psutil.Error):
                process.kill()
        os.close(terminal)
