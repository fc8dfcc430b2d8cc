from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from llmgw.server.admin.auth import Attempts
from tests.ctl.scripted import ScriptedBackend, ServedAdmin


@pytest.fixture(scope="session")
def _listening() -> Iterator[ServedAdmin]:
    """One server for all tests that do not ask for another; its clock forgets wrong tokens at once."""
    server = ServedAdmin(ScriptedBackend(), attempts=Attempts(lambda: time.monotonic() * 1e6))
    yield server
    server.stop()


@pytest.fixture
def served(_listening: ServedAdmin) -> ServedAdmin:
    """The admin API on a socket, over a control plane that is as new."""
    _listening.backend.__init__()  # type: ignore[misc]
    if not _listening.is_running():
        _listening.start()
    return _listening


@pytest.fixture
def backend(served: ServedAdmin) -> ScriptedBackend:
    """The control plane behind `served`."""
    return served.backend
