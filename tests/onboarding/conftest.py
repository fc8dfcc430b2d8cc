"""A Proxmox host for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.onboarding.proxmox.host import ProxmoxHost


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ProxmoxHost]:
    made = ProxmoxHost(tmp_path / "proxmox")
    yield made
    made.close()
