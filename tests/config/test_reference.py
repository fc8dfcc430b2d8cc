"""docs/configuration.md says what the models say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from llmgw.config.reference import configuration_page

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "configuration.md"


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text() == configuration_page(), "docs/configuration.md is out of date: run scripts/docs"


def test_the_page_has_types_bounds_and_defaults() -> None:
    page = configuration_page()
    assert "| `log_lines` | whole number, 10 to 100000 | `512` |" in page
    assert "| `heartbeat_interval` | duration, at least 50ms | `5s` |" in page
    assert "| `server` | text | **required** | The agents' endpoint, `https://host:port`. |" in page
    assert "### `models[].profiles[]`" in page


def test_the_commands_on_the_page_work() -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for line in block.splitlines():
        program, *args = line.split()
        assert program == "llmgw"
        done = subprocess.run(
            [sys.executable, "-m", "llmgw", *args],
            cwd=ROOT / "examples",
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
