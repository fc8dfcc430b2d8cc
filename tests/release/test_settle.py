"""The shell script that takes a new program back when it does not come up, without any help of a program."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from llmgw.agent.upgrade.marker import Marker, read_marker, write_marker
from llmgw.release import settle
from llmgw.release.layout import AGENT_UNIT
from llmgw.release.units import unit_text


@pytest.fixture
def marker(tmp_path: Path) -> Marker:
    """An upgrade that was switched to, in `tmp_path`."""
    program = tmp_path / "bin" / "llmgw"
    program.parent.mkdir()
    old, new = (tmp_path / "opt" / name / "bin" / "llmgw" for name in ("1.0.0-old", "1.1.0-new"))
    program.symlink_to(new)
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\n")
    old.chmod(0o755)
    marker = Marker(
        upgrade_id="u1",
        sha256="ab" * 32,
        version="1.1.0",
        program=str(program),
        old=str(old),
        new=str(new.parent.parent),
    )
    write_marker(tmp_path, marker)
    return marker


def start(folder: Path, *words: str, **environ: str) -> str:
    """What happens before one start of the agent, or with `ended` after one end."""
    done = subprocess.run(
        ["sh", "-s", "--", str(folder), *words],
        input=settle.script(),
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    return done.stderr


class Systemctl:
    """A systemctl that keeps what it was asked, instead of the machine's."""

    def __init__(self, folder: Path) -> None:
        self._asked = folder / "asked"
        program = folder / "systemctl"
        folder.mkdir()
        program.write_text(f'#!/bin/sh\necho "$*" >> {self._asked}\n')
        program.chmod(0o755)
        self.path = f"{folder}:{os.environ['PATH']}"

    def end(self, folder: Path, code: str, status: str) -> str:
        """What happens after an end with that status."""
        return start(folder, "ended", "the.service", PATH=self.path, EXIT_CODE=code, EXIT_STATUS=status)

    @property
    def asked(self) -> str:
        return self._asked.read_text() if self._asked.exists() else ""


@pytest.fixture
def systemctl(tmp_path: Path) -> Systemctl:
    return Systemctl(tmp_path / "programs")


@pytest.mark.parametrize("status", ["2", "78"])
def test_a_new_program_that_its_unit_would_not_start_again_is_taken_back_at_once(
    tmp_path: Path, marker: Marker, systemctl: Systemctl, status: str
) -> None:
    start(tmp_path)
    assert "going back to" in systemctl.end(tmp_path, "exited", status)
    assert os.readlink(marker.program) == marker.old
    now = read_marker(tmp_path)
    assert now is not None
    assert now.outcome == "back"
    assert now.reason.startswith(f"llmgw 1.1.0 ended with {status}, ")
    assert systemctl.asked == "--no-block restart the.service\n"
    # The one from before may end like that too, when the configuration is at fault: it stays ended.
    systemctl.end(tmp_path, "exited", status)
    assert systemctl.asked.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "status"), [("exited", "0"), ("exited", "1"), ("exited", "75"), ("killed", "2")]
)
def test_an_end_after_which_its_unit_starts_it_again_is_counted_at_the_next_start_only(
    tmp_path: Path, marker: Marker, systemctl: Systemctl, code: str, status: str
) -> None:
    assert systemctl.end(tmp_path, code, status) == ""
    assert read_marker(tmp_path) == marker
    assert systemctl.asked == ""


def test_a_program_that_has_settled_may_end_as_it_likes(
    tmp_path: Path, marker: Marker, systemctl: Systemctl
) -> None:
    write_marker(tmp_path, Marker(**{**vars_of(marker), "outcome": "settled"}))
    systemctl.end(tmp_path, "exited", "78")
    assert os.readlink(marker.program).endswith("1.1.0-new/bin/llmgw")
    assert systemctl.asked == ""


def test_the_statuses_of_the_script_are_those_that_the_unit_does_not_start_again() -> None:
    assert (
        tuple(unit_value("RestartPreventExitStatus").split())
        == re.findall(r"(\d+) \| (\d+)\) ;;", settle.script())[0]
    )


def test_starts_of_which_each_hangs_until_it_is_killed_count_together() -> None:
    one = sum(int(unit_value(key).rstrip("s")) for key in ("TimeoutStartSec", "TimeoutStopSec", "RestartSec"))
    assert 3 * one < int(re.findall(r"WITHIN_S=(\d+)", settle.script())[0])


def test_a_program_that_was_put_there_by_other_means_is_not_replaced(tmp_path: Path, marker: Marker) -> None:
    os.unlink(marker.program)
    os.symlink("/opt/llmgw/1.2.0-by-hand/bin/llmgw", marker.program)
    for _ in range(6):
        assert start(tmp_path) == ""
    assert os.readlink(marker.program) == "/opt/llmgw/1.2.0-by-hand/bin/llmgw"
    assert read_marker(tmp_path) == marker


def test_nothing_is_put_back_that_is_not_there(tmp_path: Path, marker: Marker) -> None:
    os.unlink(marker.old)
    said = [start(tmp_path) for _ in range(4)]
    assert "is not there to go back to: install this node again" in said[-1]
    assert os.readlink(marker.program).endswith("1.1.0-new/bin/llmgw")


def test_starts_that_cannot_be_counted_are_not_made_for_ever(tmp_path: Path, marker: Marker) -> None:
    (tmp_path / "marker.new").mkdir()  # as good as a full disk: not even root writes it
    assert "cannot be counted" in start(tmp_path)
    assert os.readlink(marker.program) == marker.old


def test_the_third_start_in_vain_is_the_last_of_the_new_program(tmp_path: Path, marker: Marker) -> None:
    for tries in (1, 2, 3):
        assert start(tmp_path) == ""
        now = read_marker(tmp_path)
        assert now is not None
        assert (now.tries, now.outcome) == (tries, "trial")
        assert os.readlink(marker.program).endswith("1.1.0-new/bin/llmgw")
    assert "going back to" in start(tmp_path)
    now = read_marker(tmp_path)
    assert now is not None
    assert now.outcome == "back"
    assert "llmgw 1.1.0 was started 3 times" in now.reason
    assert os.readlink(marker.program) == marker.old
    assert start(tmp_path) == ""


def test_starts_far_apart_do_not_count_together(tmp_path: Path, marker: Marker) -> None:
    long_ago = int(time.time()) - 3600
    write_marker(tmp_path, Marker(**{**vars_of(marker), "tries": 3, "first_try": long_ago}))
    start(tmp_path)
    now = read_marker(tmp_path)
    assert now is not None
    assert (now.tries, now.outcome) == (1, "trial")


def test_a_program_that_has_settled_may_be_started_as_often_as_it_likes(tmp_path: Path, marker: Marker) -> None:
    write_marker(tmp_path, Marker(**{**vars_of(marker), "outcome": "settled"}))
    for _ in range(6):
        start(tmp_path)
    assert os.readlink(marker.program).endswith("1.1.0-new/bin/llmgw")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "outcome=trial\n",
        "tries=x\noutcome=trial\nold=\n",
        "tries=08\nfirst_try=09\noutcome=trial\nprogram=/p\n",
        "\0\xff==",
    ],
)
def test_whatever_is_wrong_with_the_marker_the_agent_is_started(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "marker").write_text(text, encoding="latin-1")
    for _ in range(5):
        start(tmp_path)


def unit_value(key: str) -> str:
    return re.findall(rf"^{key}=(.*)$", unit_text(AGENT_UNIT), re.MULTILINE)[0]


def vars_of(marker: Marker) -> dict[str, object]:
    return {name: getattr(marker, name) for name in marker.__dataclass_fields__}
