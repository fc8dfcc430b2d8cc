"""The lab's fabrics, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.machines import needs
from tests.lab.real_fabric import missing
from tests.lab.site import Site


@pytest.fixture(autouse=True, scope="session")
def _lab() -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def needs_machines() -> None:
    """For tests with real systemd nodes."""
    reason = needs.missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two fabrics, each with two managers, and nodes on them. Whoever changes something puts it right."""
    yield from _site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Site]:
    """The same for one test alone."""
    yield from _site(tmp_path)


def _site(folder: Path) -> Iterator[Site]:
    made = Site(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
