"""Runs `llmgw ctl` in an environment of its own: as a process, or (quicker) in this one."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.cli.app import run
from tests.ctl.scripted import TOKEN, ServedAdmin

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "llmgw", "ctl"]
Done = subprocess.CompletedProcess[str]


def environment(home: Path, served: ServedAdmin | None = None, **more: str) -> dict[str, str]:
    """Names `served` and its token, unless that is None; `home` is where it looks for a demo."""
    named = {"LLMGW_CTL_SERVER": served.url, "LLMGW_CTL_TOKEN": TOKEN} if served else {}
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "80",
        **named,
        **more,
    }


def ctl_process(*arguments: str, home: Path, served: ServedAdmin | None = None, **more: str) -> Done:
    """Run a process to its end. `more` is added to the environment; the working directory is `home`."""
    env = environment(home, served, **more)
    command = [*PROGRAM, *arguments]
    return subprocess.run(command, env=env, cwd=home, input="", capture_output=True, text=True, timeout=90)


def ctl(*arguments: str, home: Path, served: ServedAdmin | None = None, **more: str) -> Done:
    """The same without a process, from the same front door."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", environment(home, served, **more))
        patch.setattr(sys, "argv", ["llmgw", "ctl", *arguments])
        patch.setattr(sys, "stdin", io.StringIO())
        patch.chdir(home)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            run()
    code = ended.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())


def sentence_of(done: Done, code: int = 1) -> str:
    """The one sentence that a failed run leaves on stderr."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert "defect in llmgw" not in lines[0]
    return lines[0]
