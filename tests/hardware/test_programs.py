"""A tool of the machine is run with limits, and every failure is a sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmgw.hardware.programs import ProgramError, run_program
from tests.hardware.nodes import write_program
from tests.patience import PATIENCE


def run(program: Path, *args: str, timeout_s: float = 10.0, output_bytes_max: int = 100_000):  # type: ignore[no-untyped-def]
    return run_program([str(program), *args], timeout_s=timeout_s, output_bytes_max=output_bytes_max)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 5 * PATIENCE
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


def test_both_outputs_and_the_exit_code_come_back(tmp_path: Path) -> None:
    output = run(write_program(tmp_path / "tool", "echo out $1; echo err >&2; exit 9"), "x")
    assert (output.code, output.stdout, output.stderr, output.cut) == (9, "out x\n", "err\n", False)


def test_it_runs_in_the_c_locale_without_input(tmp_path: Path) -> None:
    output = run(write_program(tmp_path / "tool", 'read -r line; echo "$LC_ALL $line."'))
    assert output.stdout == "C .\n"


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    program = write_program(tmp_path / "tool", f"sleep 60 & echo $! > {tmp_path}/child; wait")
    begun = time.monotonic()
    with pytest.raises(ProgramError, match=r"did not answer within 0\.5 s"):
        run(program, timeout_s=0.5)
    assert time.monotonic() - begun < 5
    wait_until_gone(int((tmp_path / "child").read_text()))


def test_a_child_that_keeps_the_pipe_open_does_not_delay_the_answer(tmp_path: Path) -> None:
    program = write_program(tmp_path / "tool", f"sleep 60 & echo $! > {tmp_path}/child; echo done")
    begun = time.monotonic()
    assert run(program).stdout == "done\n"
    assert time.monotonic() - begun < 5
    wait_until_gone(int((tmp_path / "child").read_text()))


def test_a_flood_of_output_is_cut_and_the_program_ended(tmp_path: Path) -> None:
    output = run(write_program(tmp_path / "tool", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"))
    assert output.cut
    assert len(output.stdout) == 100_000


def test_a_missing_program_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="does not exist"):
        run(tmp_path / "tool")


def test_a_file_of_another_architecture_is_a_sentence(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(200))
    program.chmod(0o755)
    with pytest.raises(ProgramError, match="not a program for this machine"):
        run(program)


def test_a_file_that_may_not_be_run_is_a_sentence(tmp_path: Path) -> None:
    program = write_program(tmp_path / "tool", "echo x")
    program.chmod(0o644)
    with pytest.raises(ProgramError, match="not executable") as raised:
        run(program)
    assert "chmod" in raised.value.remedy


def test_ctrl_c_in_the_middle_of_a_start_leaves_nothing_behind(tmp_path: Path) -> None:
    # The interrupt comes as early as it can: from the program's own first step, while Popen may not be back yet.
    pids = tmp_path / "pids"
    path = write_program(tmp_path / "program", f'echo $$ >> "{pids}"; kill -INT $PPID; exec sleep 1000')
    script = (
        "import sys\n"
        "from llmgw.hardware.programs import run_program\n"
        "for _ in range(40):\n"
        "    try:\n"
        "        run_program([sys.argv[1]], timeout_s=20, output_bytes_max=100)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150, check=True)
    assert done.stdout.split() == ["interrupted"] * 40
    left = [pid for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists()]
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert left == []


def test_no_file_descriptor_is_left_open(tmp_path: Path) -> None:
    program = write_program(tmp_path / "tool", "echo x")
    run(program)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run(program)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_program_ends_with_the_process_that_asked_it(tmp_path: Path) -> None:
    said = f"echo $$ >{tmp_path}/pid.part; mv {tmp_path}/pid.part {tmp_path}/pid"
    program = write_program(tmp_path / "tool", f"{said}\nexec sleep 60")
    call = f"run_program([{str(program)!r}], timeout_s=60, output_bytes_max=9)"
    asking = f"from llmgw.hardware.programs import run_program\n{call}"
    asker = subprocess.Popen([sys.executable, "-c", asking])
    deadline = time.monotonic() + 20
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    asker.kill()
    asker.wait()
    wait_until_gone(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a program another user's rights")
def test_root_runs_a_program_with_the_rights_that_it_is_told(tmp_path: Path) -> None:
    output = run_program(
        ["/bin/sh", "-c", "id -u; id -g; id -G; echo $X"],
        timeout_s=10,
        output_bytes_max=1000,
        env={**os.environ, "X": "y"},
        become={"user": 65534, "group": 65534, "extra_groups": []},
    )
    assert output.stdout.split() == ["65534", "65534", "65534", "y"]
