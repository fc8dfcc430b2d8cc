"""The lab's fabrics, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.real_fabric import missing
from tests.lab.site import Site


@pytest.fixture(autouse=True, scope="session")
def _lab() -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Two fabrics, each with two managers, and six nodes on them."""
    made = Site(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()
