"""Fixtures that several folders of tests use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def llama_python() -> str:
    """An interpreter with `xllamacpp` and `gguf`."""
    python = os.environ.get("LLMGW_TEST_LLAMA_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import xllamacpp, gguf"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(
            f"{python} has no xllamacpp and gguf: pip install them somewhere and name its python in "
            "LLMGW_TEST_LLAMA_PYTHON"
        )
    return python
