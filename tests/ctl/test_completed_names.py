"""Names that a shell is offered for the arguments of `ctl`: those of the server that it would ask."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ctl.run_ctl import environment
from tests.ctl.scripted import ServedAdmin


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("llmgw ctl drain no", "node01"),
        ("llmgw ctl nodes ", "node01"),
        ("llmgw ctl node remove ", "node01"),
        ("llmgw ctl logs chat", "chat-large-1a2b"),
        ("llmgw ctl explain ", "org/chat-large"),
        ("llmgw ctl fabric map ", "ib-a"),
    ],
)
def test_the_names_of_the_server_are_offered(
    served: ServedAdmin, tmp_path: Path, line: str, offered: str
) -> None:
    asked = {"_LLMGW_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "llmgw"],
        env=environment(tmp_path, served, **asked),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert offered in done.stdout.split(), done.stdout + done.stderr
    assert all(word.startswith(line.split(" ")[-1]) for word in done.stdout.split())
    assert done.stderr == ""
