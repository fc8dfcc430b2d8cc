"""An authority, a bare machine, and a Proxmox host for each test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.pki.authority import Authority
from tests.onboarding.machine import Machine
from tests.onboarding.proxmox.host import ProxmoxHost


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ProxmoxHost]:
    made = ProxmoxHost(tmp_path / "proxmox")
    yield made
    made.close()


@pytest.fixture(scope="session")
def _authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pki = tmp_path_factory.mktemp("authority") / "pki"
    Authority.create(pki, now=time.time())
    return pki


@pytest.fixture
def pki(_authority: Path) -> Path:
    """An authority's folder, shared by the tests."""
    return _authority


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A bare machine called node01."""
    folder = tmp_path / "machine"
    folder.mkdir()
    return Machine(folder)
