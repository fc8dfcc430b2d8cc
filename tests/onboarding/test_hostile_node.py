"""A machine that answers whatever it likes: what it prints is bounded, and every answer ends in a sentence."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import pytest

from tests.onboarding.machine import Machine, report_of

_SSH = """#!/bin/sh
for word in "$@"; do last=$word; done
case " $* " in
  *" -G "*) echo "stricthostkeychecking ask"; exit 0 ;;
  *" -O "*) exit 0 ;;
esac
case "$last" in
  *"tar -xf"*) cat >/dev/null; echo llmgw-onboard-begins; cat "$LLMGW_TEST_MACHINE/says" ;;
  *) echo root ;;
esac
"""
_WHOLE = f"""time {{now}}
hostname node01
system Linux
machine {platform.machine()}
systemd yes
distribution Debian
libc glibc 2.36
address eno1 127.0.0.1
"""


def says(machine: Machine, *lines: str) -> None:
    """Have every script on the machine print a good probe's lines with these before and after them."""
    text = "\n".join([*lines, _WHOLE.format(now=int(time.time())), *lines])
    (machine.folder / "says").write_text(text)
    (machine.path / "ssh").write_text(_SSH)


@pytest.mark.parametrize(
    "line",
    [
        "time " + "9" * 400,
        "time -1e3",
        "free_kb /opt many",
        "python foo venv /usr/bin/python3",
        "python cp venv /usr/bin/python3",
        "python cp3" + "9" * 5000 + " venv /usr/bin/python3",
        "address",
        "file agent.yaml %%%",
    ],
)
def test_an_answer_that_no_machine_gives_is_refused_in_a_sentence(machine: Machine, pki: Path, line: str) -> None:
    says(machine, line)
    done = machine.onboard_here(pki, "--dry-run")
    assert done.returncode == 1
    assert "node01 did not answer as a Linux machine with a POSIX shell does" in done.stderr


def test_what_it_calls_itself_is_shown_in_bounds_and_without_what_a_terminal_acts_on(
    machine: Machine, pki: Path
) -> None:
    says(machine, "distribution \x1b[31m" + "D" * 3_000_000, "address \x1b[31mx 10.0.0.1")
    done = machine.onboard_here(pki, "--dry-run", "-o", "json")
    assert done.returncode == 0, done.stderr[-300:]
    assert len(done.stderr) < 10_000
    assert "\x1b" not in done.stderr
    assert report_of(done)["dry_run"]


def test_a_program_whose_version_has_no_end_is_no_version(machine: Machine, pki: Path) -> None:
    number = "9" * 5000
    says(machine, f"program /opt/llmgw/{number}-0123456789ab/bin/llmgw", f"version {number}-0123456789ab")
    machine.sends_release = False
    done = machine.onboard_here(pki, "--dry-run")
    assert done.returncode == 1
    assert "This llmgw runs from a working tree" in done.stderr


def test_what_it_says_for_doctor_does_not_take_the_report_away(machine: Machine, pki: Path) -> None:
    (machine.folder / "findings.json").write_text('{"findings": [], "x": ' + "[" * 100_000)
    done = machine.onboard_here(pki, "-o", "json")
    assert done.returncode == 0, done.stderr[-300:]
    assert any("llmgw doctor" in note for note in report_of(done)["notes"])


def test_a_doctor_that_never_ends_does_not_take_the_report_away(
    machine: Machine, pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgw.onboarding.onboard.DOCTOR_TIMEOUT_S", 0.5)
    assert machine.onboard_here(pki).returncode == 0
    program = (machine.root / "usr/local/bin/llmgw").resolve()
    program.write_text(program.read_text().replace("doctor) ", "doctor) sleep 3; "))
    done = machine.onboard_here(pki, "-o", "json")
    report = report_of(done)
    assert report["version"]
    assert any("llmgw doctor was not heard" in note and "within 0.5 s" in note for note in report["notes"])
