"""What a process is: its version, its role, and since when it runs."""

from __future__ import annotations

import platform

from llmgw import __version__
from llmgw.metrics.family import Family

BUILD = Family(
    "llmgw_build_info",
    "gauge",
    "The version of this process; always 1; role is server or agent",
    ("role", "version", "python"),
)
STARTED = Family("llmgw_start_time_seconds", "gauge", "When this process started, in seconds since 1970")
FAMILIES = (BUILD, STARTED)


def process_text(role: str, started_at: float) -> str:
    """Both families. `started_at` is in seconds since the epoch."""
    build = BUILD.text([((role, __version__, platform.python_version()), 1)])
    return build + STARTED.value(started_at)
