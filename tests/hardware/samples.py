"""Real outputs of the tools, where the folder with them lies beside the repository or LLMGW_SHARED names it."""

from __future__ import annotations

import os
from pathlib import Path

_BESIDE = Path(__file__).parents[2].parent / "shared"
SAMPLES = (_BESIDE if _BESIDE.is_dir() else Path(os.environ.get("LLMGW_SHARED", _BESIDE))) / "samples"
WITHOUT_SAMPLES = "no ../shared/samples beside the repository: nothing real to read"


def sample_files(folder: str, pattern: str) -> list[Path]:
    """The files of one folder of samples; empty where there are none."""
    return sorted((SAMPLES / folder).glob(pattern))
