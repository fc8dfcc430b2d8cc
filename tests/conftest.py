"""Fixtures that several folders of tests use."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import certifi
import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_authorities_of_the_web() -> Iterator[None]:
    """No test talks to the web: httpx need not read all its authorities for each client, some 30 ms of a core."""
    known = ssl.create_default_context(cafile=certifi.where()).get_ca_certs(binary_form=True)
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as one, pytest.MonkeyPatch.context() as patch:
        one.write(ssl.DER_cert_to_PEM_cert(known[0]))
        one.flush()
        patch.setattr(certifi, "where", lambda: one.name)
        yield


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
