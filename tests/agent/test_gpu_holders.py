"""Who a process is: its command without its options, and the shard that it belongs to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmgw.agent.gpu_holders import COMMAND_CHARS, identifier, read_command
from llmgw.agent.processes import ProcessIdentity, read_process
from tests.agent.waiting import wait_until


@contextmanager
def process(*words: str, env: dict[str, str] | None = None, folder: Path | None = None) -> Iterator[int]:
    """A process of Python that sleeps, with these words behind its program."""
    argv = [sys.executable, *words] if words else [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(argv, env=env if env is not None else {}, cwd=folder, stdin=subprocess.DEVNULL) as one:
        try:
            wait_until(lambda: Path(f"/proc/{one.pid}/cmdline").read_bytes(), "the program runs")
            yield one.pid
        finally:
            one.kill()


def test_a_command_is_shown_up_to_its_first_option(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(600)")
    python = os.path.basename(sys.executable)
    with process("train.py", "big", "--api-key", "sk-secret", folder=tmp_path) as pid:
        assert read_command(pid) == f"{python} train.py big"
    with process("-m", "train", "--api-key=sk-secret", folder=tmp_path, env={"PYTHONPATH": "."}) as pid:
        assert read_command(pid) == f"{python} -m train"


def test_a_command_is_printable_and_short(tmp_path: Path) -> None:
    name = "\x1b[31m" + "x" * 200
    (tmp_path / "t.py").write_text("import time; time.sleep(600)")
    with process("t.py", name, folder=tmp_path) as pid:
        command = read_command(pid)
    assert command.isprintable()
    assert len(command) == COMMAND_CHARS


def test_a_process_that_nobody_can_see_says_so() -> None:
    holder = identifier("/work", [])(2**22 + 1)
    assert (holder.began_boot_s, holder.shard_id) == (None, None)
    assert "not visible" in holder.command


def test_a_process_belongs_to_the_shard_of_its_marker_its_session_or_its_ancestors(tmp_path: Path) -> None:
    marked = {"LLMGW_SHARD": "r1-0", "LLMGW_WORK_DIR": "/work"}
    with process(env=marked) as pid:
        assert identifier("/work", [])(pid).shard_id == "r1-0"
        # Another agent's shard is a stranger here.
        assert identifier("/elsewhere", [])(pid).shard_id is None
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], env={},"
        " start_new_session=True)\n"
        "open('child.pid', 'w').write(f'{child.pid}\\n')\n"
        "child.wait()\n"
    )
    with process("parent.py", folder=tmp_path) as pid:
        told = tmp_path / "child.pid"
        wait_until(lambda: told.exists() and told.read_text().endswith("\n"), "the child runs")
        child = int(told.read_text())
        try:
            parent = read_process(pid)
            assert parent is not None
            assert identifier("/work", [(parent.identity, "r2-0")])(child).shard_id == "r2-0"
            # A pid that was used again is not the process that the shard began.
            reused = ProcessIdentity(pid, parent.start_ticks + 1)
            assert identifier("/work", [(reused, "r2-0")])(child).shard_id is None
        finally:
            os.kill(child, 9)


def test_when_a_process_began_is_told_in_seconds_since_boot() -> None:
    with process() as pid:
        holder = identifier("/work", [])(pid)
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        assert holder.began_boot_s is not None
        assert uptime - 20 < holder.began_boot_s <= uptime + 0.1
