"""What takes long: following an engine's output and waiting for a drain, over restarts of the server."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from llmgw.cli.ctl.nodes import STUCK_LOOKS
from llmgw.messages.admin import NodeView
from tests.ctl.run_ctl import PROGRAM, ctl, environment
from tests.ctl.scripted import ScriptedBackend, ServedAdmin, node

WAIT_S = 45.0


class Running:
    """A `ctl` that runs while the test goes on; its lines come as they are written."""

    def __init__(self, *arguments: str, home: Path, served: ServedAdmin) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments],
            env=environment(home, served, PYTHONUNBUFFERED="1"),
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out, self.err = self._reader(self.process.stdout), self._reader(self.process.stderr)

    @staticmethod
    def _reader(stream: Iterator[str] | None) -> queue.Queue[str]:
        lines: queue.Queue[str] = queue.Queue()
        assert stream is not None

        def read() -> None:
            for line in stream:
                lines.put(line.rstrip("\n"))

        threading.Thread(target=read, daemon=True).start()
        return lines

    def ends_with(self, code: int) -> None:
        assert self.process.wait(WAIT_S) == code


@pytest.fixture
def run(served: ServedAdmin, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*arguments: str) -> Running:
        started.append(Running(*arguments, home=tmp_path, served=served))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()
        running.process.wait()


def test_logs_without_follow_give_the_last_lines(served: ServedAdmin, tmp_path: Path) -> None:
    assert ctl("logs", "chat-large", "-n", "2", home=tmp_path, served=served).stdout == "two\nthree\n"


def test_following_ends_when_the_shard_is_over(backend: ScriptedBackend, run: Callable[..., Running]) -> None:
    backend.log_over = False
    following = run("logs", "chat-large", "-f", "-n", "1", "--rank", "1")
    assert following.out.get(timeout=WAIT_S) == "three"
    backend.log_text += "four\n"
    assert following.out.get(timeout=WAIT_S) == "four"
    backend.log_text += "five\n"
    backend.log_over = True
    following.ends_with(0)
    assert following.out.get(timeout=WAIT_S) == "five"
    assert following.err.empty()


def test_following_survives_a_restart_of_the_server_that_does_not_know_its_fleet_yet(
    backend: ScriptedBackend, served: ServedAdmin, run: Callable[..., Running]
) -> None:
    backend.log_over = False
    following = run("logs", "chat-large", "-f", "-n", "1")
    assert following.out.get(timeout=WAIT_S) == "three"
    served.stop()
    assert following.err.get(timeout=WAIT_S).endswith("; waiting")
    known, backend.replicas_known, backend.settling = backend.replicas_known, [], True
    asked = len(backend.asked)
    served.start()
    wait_for(lambda: len(backend.asked) > asked)
    backend.log_text += "after\n"
    backend.replicas_known, backend.settling = known, False
    assert following.out.get(timeout=WAIT_S) == "after"
    assert following.err.get(timeout=WAIT_S) == "the server answers again"
    backend.replicas_known = []
    following.ends_with(0)
    assert "the replica is gone" in following.err.get(timeout=WAIT_S)


def test_following_as_json_gives_one_part_a_line(backend: ScriptedBackend, run: Callable[..., Running]) -> None:
    following = run("logs", "chat-large", "-f", "-n", "1", "-o", "json")
    part = json.loads(following.out.get(timeout=WAIT_S))
    assert (part["text"], part["next_offset"]) == ("three\n", 14)
    following.ends_with(0)


def test_ctrl_c_ends_quietly_with_130(backend: ScriptedBackend, run: Callable[..., Running]) -> None:
    backend.log_over = False
    following = run("logs", "chat-large", "-f")
    for _ in range(3):
        following.out.get(timeout=WAIT_S)
    os.kill(following.process.pid, signal.SIGINT)
    following.ends_with(130)
    assert following.err.empty()


def test_a_drain_is_waited_for_until_nothing_is_left(
    backend: ScriptedBackend, run: Callable[..., Running]
) -> None:
    backend.nodes_known = [node("node01", draining=True, replicas=["a", "b"])]
    draining = run("drain", "node01", "--wait")
    assert draining.out.get(timeout=WAIT_S) == "drain was done"
    assert draining.err.get(timeout=WAIT_S) == "node01: 2 left: a, b"
    backend.nodes_known = [node("node01", draining=True, replicas=["b"], drain_left=[])]
    assert draining.err.get(timeout=WAIT_S) == "node01: 1 left: b"
    backend.nodes_known = [node("node01", draining=True, replicas=[])]
    assert draining.err.get(timeout=WAIT_S).startswith("node01 is empty after")
    draining.ends_with(0)


def test_a_drain_is_waited_for_as_long_as_anything_goes_on(
    backend: ScriptedBackend, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One cannot be moved, the other is under way: nothing is over before both are as they will stay.
    there = node(
        "node01",
        draining=True,
        replicas=["a", "b"],
        drain_left=["a: no fabric has room"],
        drain_waits=["b: it waits until its replacement c is ready"],
    )
    looks = 0

    def nodes() -> list[NodeView]:
        nonlocal looks
        looks += 1
        return backend.nodes_known

    backend.nodes_known = [there]
    monkeypatch.setattr(backend, "nodes", nodes)
    draining = run("drain", "node01", "--wait")
    assert draining.err.get(timeout=WAIT_S) == "node01: 2 left: a, b"
    deadline = time.monotonic() + WAIT_S
    while looks < 2 * STUCK_LOOKS and time.monotonic() < deadline:
        time.sleep(0.05)
    assert draining.process.poll() is None
    assert draining.err.empty()
    backend.nodes_known = [msgspec.structs.replace(there, replicas=["a"], drain_waits=[])]
    draining.ends_with(1)
    assert draining.err.get(timeout=WAIT_S) == "node01: 1 left: a"
    assert "node01 cannot be emptied: a: no fabric has room" in draining.err.get(timeout=WAIT_S)


def test_a_drain_that_cannot_go_on_says_why(backend: ScriptedBackend, run: Callable[..., Running]) -> None:
    backend.nodes_known = [node("node01", draining=True, replicas=["a"], drain_left=["a: no fabric has room"])]
    draining = run("drain", "node01", "--wait")
    draining.ends_with(1)
    assert draining.err.get(timeout=WAIT_S) == "node01: 1 left: a"
    assert "node01 cannot be emptied: a: no fabric has room" in draining.err.get(timeout=WAIT_S)


def test_a_drain_that_is_taken_back_meanwhile_fails(
    backend: ScriptedBackend, run: Callable[..., Running]
) -> None:
    backend.nodes_known = [node("node01", draining=True, replicas=["a"])]
    draining = run("drain", "node01", "--wait")
    assert draining.err.get(timeout=WAIT_S) == "node01: 1 left: a"
    backend.nodes_known = [msgspec.structs.replace(backend.nodes_known[0], draining=False)]
    draining.ends_with(1)
    assert "was taken back" in draining.err.get(timeout=WAIT_S)


@pytest.mark.parametrize(("typed", "code"), [("n", 1), ("y", 0)])
def test_removing_a_node_asks_first(
    served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path, typed: str, code: int
) -> None:
    backend.nodes_known = [node("node01", state="lost", replicas=["chat-large-1a2b"])]
    terminal, its_end = os.openpty()
    try:
        os.write(terminal, f"{typed}\n".encode())
        done = subprocess.run(
            [*PROGRAM, "node", "remove", "node01"],
            env=environment(tmp_path, served),
            cwd=tmp_path,
            stdin=its_end,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
    finally:
        os.close(terminal)
        os.close(its_end)
    assert done.returncode == code, done.stderr
    assert "node01 is lost and it runs chat-large-1a2b. Remove it?" in done.stderr
    assert ("remove_node", "node01", "first") in backend.asked if code == 0 else backend.asked == []


def test_a_node_that_is_ready_is_drained_first_and_the_command_for_the_authority_is_said(
    served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path
) -> None:
    backend.nodes_known = [node("node01", draining=True, replicas=[])]
    options = ["--yes", "--pki", str(tmp_path / "nowhere")]
    done = subprocess.run(
        [*PROGRAM, "node", "remove", "node01", "--force", *options],
        env=environment(tmp_path, served),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    changes = [what for what in backend.asked if what[0] in ("drain", "remove_node")]
    assert changes == [("drain", "node01", True, "first"), ("remove_node", "node01", "force", "first")]
    assert f"on the host that has it, run llmgw ctl cert revoke node01 --pki {tmp_path}/nowhere" in done.stderr


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
