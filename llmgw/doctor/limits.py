"""The limits that engines inherit: of the agent that runs here, else of the unit that would run it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from llmgw.hardware.machine import Limits, limits_of
from llmgw.hardware.programs import ProgramError, run_program

UNIT = "llmgw-agent.service"
_LIMIT_S = 3.0
_OUTPUT_BYTES_MAX = 64 * 1024
# The kernel's name of a limit → systemd's.
_NAMES = {"Max locked memory": "LimitMEMLOCK", "Max open files": "LimitNOFILE"}


def inherited_limits(
    work_dir: str, root: Path = Path("/"), show: Callable[[], str] | None = None
) -> Limits | None:
    """None where no agent runs in `work_dir` and no unit is installed: then this process is as good as any."""
    pid = running_agent(work_dir)
    if pid is not None:
        return limits_of(root, pid) or None
    return parse_unit((show or _show_unit)())


def running_agent(work_dir: str) -> int | None:
    """The process of the agent that works in `work_dir`; None when none runs."""
    try:
        pid = int((Path(work_dir) / "agent.lock").read_text(encoding="ascii"))
        os.kill(pid, 0)
    except PermissionError:
        return pid
    except (OSError, ValueError):
        return None
    return pid


def parse_unit(text: str) -> Limits | None:
    """Read `systemctl show -p …`: a line a property. None when the unit is not loaded."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if values.get("LoadState") != "loaded":
        return None
    return {
        name: (_number(values.get(f"{key}Soft", values[key])), _number(values[key]))
        for name, key in _NAMES.items()
        if key in values
    }


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() else None


def _show_unit() -> str:
    properties = ["LoadState", *_NAMES.values(), *(f"{key}Soft" for key in _NAMES.values())]
    if not Path("/run/systemd/system").is_dir():
        return ""
    try:
        argv = ["systemctl", "show", UNIT, f"--property={','.join(properties)}"]
        return run_program(argv, timeout_s=_LIMIT_S, output_bytes_max=_OUTPUT_BYTES_MAX).stdout
    except ProgramError:
        return ""
