"""A demo's fabrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.demo_site import DemoSite


@pytest.fixture
def site(tmp_path: Path) -> DemoSite:
    return DemoSite(tmp_path)
