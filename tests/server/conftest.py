"""A control plane whose admin API is asked, for whatever file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.test_catalog_owner import Test, plane


@pytest.fixture
def with_plane(tmp_path: Path) -> Callable[[Test], None]:
    """Runs a test's body with a plane, under a deadline."""

    def run(body: Test) -> None:
        async def main() -> None:
            async with plane(tmp_path / "state") as made:
                await asyncio.wait_for(body(made), 20.0)

        asyncio.run(main())

    return run
