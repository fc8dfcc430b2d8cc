"""Real outputs of the tools, where the folder with them lies beside the repository."""

from __future__ import annotations

from pathlib import Path

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
WITHOUT_SAMPLES = "no ../shared/samples beside the repository: nothing real to read"


def sample_files(folder: str, pattern: str) -> list[Path]:
    """The files of one folder of samples; empty where there are none."""
    return sorted((SAMPLES / folder).glob(pattern))
