"""What stops a build, as a sentence; and programs whose output is kept for that."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmgw.config.errors import SentenceError

_LINES_SHOWN = 15


class BuildError(SentenceError):
    """A build cannot go on: what failed, and what to do."""


def run_logged(argv: Sequence[str], log: Path, failed: str, env: Mapping[str, str] | None = None) -> None:
    """Run a program in the folder of `log`, where its output goes.

    Raises BuildError with `failed` and the end of that output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=log.parent, check=False
        )
    if done.returncode != 0:
        last = log.read_text(errors="replace").splitlines()[-_LINES_SHOWN:]
        raise BuildError("\n".join([f"{failed} ({log} has all of it):", *last]))
