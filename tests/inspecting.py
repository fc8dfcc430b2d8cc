"""`llmgw inspect` as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def inspect(*args: object, stdin: bytes = b"") -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "llmgw", "inspect", *map(str, args)],
        input=stdin,
        capture_output=True,
        timeout=150,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def said(*args: object, stdin: bytes = b"") -> Any:
    """What it says as JSON, when all is well."""
    code, out, err = inspect(*args, "-o", "json", stdin=stdin)
    assert (code, err) == (0, "")
    return json.loads(out)
