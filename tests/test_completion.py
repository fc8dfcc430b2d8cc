"""Completion of words by shells: installed into a home of the test's own, and asked as the shells ask."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BASH = shutil.which("bash") or "/bin/bash"
WRITTEN = {
    "bash": (".bash_completions/llmgw.sh", ".bashrc"),
    "zsh": (".zfunc/_llmgw", ".zshrc"),
    "fish": (".config/fish/completions/llmgw.fish", None),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with `llmgw` on its PATH."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "llmgw"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m llmgw "$@"\n')
    program.chmod(0o755)
    return tmp_path


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LLMGW_", "XDG_"))}
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    return {**kept, "HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT), **more}


def typed(home: Path, shell: str, line: str) -> subprocess.CompletedProcess[str]:
    """A shell is given a line, as its user would give it."""
    return subprocess.run(
        [shell, "-c", line],
        env=environment(home),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def installed(home: Path, shell: str) -> Path:
    """Install from within a shell of that name, as its user would; returns the script that was written."""
    there = shutil.which(shell)
    if there is None:  # the name is what is looked at
        there = str(home / "bin" / shell)
        Path(there).symlink_to(BASH)
    done = typed(home, there, "llmgw --install-completion; echo $status$?")
    assert done.stderr == ""
    script, _ = WRITTEN[shell]
    assert f"{shell} completion installed in {home / script}" in done.stdout
    return home / script


@pytest.mark.parametrize("shell", WRITTEN)
def test_completion_is_installed_where_the_shell_looks(home: Path, shell: str) -> None:
    script = installed(home, shell)
    assert f"complete_{shell}" in script.read_text()
    _, startup = WRITTEN[shell]
    if startup is not None:
        assert str(script.parent.name) in (home / startup).read_text()


def test_another_shells_name_is_refused_and_nothing_is_installed(home: Path) -> None:
    # It was left unread, and the completion of the shell here was installed.
    done = typed(home, BASH, "llmgw --install-completion zsh; exit $?")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--install-completion takes no 'zsh'" in done.stderr
    assert sorted(path.name for path in home.iterdir()) == ["bin"]


def test_bash_completes_commands_and_their_options(home: Path) -> None:
    script = installed(home, "bash")

    def completed(*words: str) -> list[str]:
        ask = (
            f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _llmgw_completion llmgw; '
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            [BASH, "--norc", "-c", ask, "bash", *words],
            env=environment(home),
            cwd=home,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout.split()

    assert completed("llmgw", "ct") == ["ctl"]
    assert {"backup", "restore"} <= set(completed("llmgw", "server", ""))
    assert completed("llmgw", "ctl", "dra") == ["drain"]
    assert "--force" in completed("llmgw", "ctl", "drain", "--f")


@pytest.mark.parametrize(
    ("shell", "asked"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "llmgw ct"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "llmgw ct", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_what_the_other_shells_ask_is_answered(home: Path, shell: str, asked: dict[str, str]) -> None:
    script = installed(home, shell)
    for name in asked:
        assert name in script.read_text(), "as this script asks"
    done = subprocess.run(
        ["llmgw"],
        env=environment(home, _LLMGW_COMPLETE=f"complete_{shell}", **asked),
        executable=str(home / "bin" / "llmgw"),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert "ctl" in done.stdout
    assert "agent" not in done.stdout
    assert done.stderr == ""


def test_names_are_none_and_nothing_is_said_when_no_server_answers(home: Path) -> None:
    def ask(**more: str) -> float:
        """Seconds of completing a node's name."""
        begun = time.monotonic()
        done = subprocess.run(
            [str(home / "bin" / "llmgw")],
            env=environment(
                home, _LLMGW_COMPLETE="complete_bash", COMP_WORDS="llmgw ctl drain ", COMP_CWORD="3", **more
            ),
            cwd=home,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert (done.stdout.strip(), done.stderr) == ("", "")
        return time.monotonic() - begun

    quick = ask()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # It takes the connection and never answers.
        named = {"LLMGW_CTL_SERVER": f"http://127.0.0.1:{silent.getsockname()[1]}", "LLMGW_CTL_TOKEN": "x"}
        assert ask(**named) < quick + 10
