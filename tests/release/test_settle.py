"""The shell script that takes a new program back when it does not come up, without any help of a program."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from llmgw.agent.upgrade.marker import Marker, read_marker, write_marker
from llmgw.release import settle


@pytest.fixture
def marker(tmp_path: Path) -> Marker:
    """An upgrade that was switched to, in `tmp_path`."""
    program = tmp_path / "bin" / "llmgw"
    program.parent.mkdir()
    old, new = (tmp_path / "opt" / name / "bin" / "llmgw" for name in ("1.0.0-old", "1.1.0-new"))
    program.symlink_to(new)
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


def start(folder: Path) -> str:
    """What happens before one start of the agent."""
    done = subprocess.run(
        ["sh", "-s", "--", str(folder)], input=settle.script(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    return done.stderr


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


@pytest.mark.parametrize("text", [None, "", "outcome=trial\n", "tries=x\noutcome=trial\nold=\n", "\0\xff=="])
def test_whatever_is_wrong_with_the_marker_the_agent_is_started(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "marker").write_text(text, encoding="latin-1")
    for _ in range(5):
        start(tmp_path)


def vars_of(marker: Marker) -> dict[str, object]:
    return {name: getattr(marker, name) for name in marker.__dataclass_fields__}
