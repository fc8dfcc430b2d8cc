from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ctl.scripted import ScriptedBackend, ServedAdmin


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture
def served(backend: ScriptedBackend) -> Iterator[ServedAdmin]:
    server = ServedAdmin(backend)
    yield server
    server.stop()
