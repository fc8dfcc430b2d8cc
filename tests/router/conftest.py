"""One router process serves most tests; each brings a table of its own epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.messages.routes import RouterShare
from tests.patience import PATIENCE
from tests.router.support import Fleet, RouterProcess, fleet_of

Scenario = Callable[[Fleet], Awaitable[None]]


@pytest.fixture(scope="package")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    process = RouterProcess(
        tmp_path_factory.mktemp("router"), "--body-bytes-max=8388608", "--connect-timeout-s=0.5"
    )
    yield process
    process.stop()


@pytest.fixture
def play(router: RouterProcess) -> Callable[[Scenario], None]:
    """Runs a scenario against the shared router, with a deadline."""

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            async with asyncio.timeout(30 * PATIENCE), fleet_of(router) as fleet:
                fleet.link.send_share(RouterShare(workers=1))  # whatever an earlier test had divided
                await scenario(fleet)

        asyncio.run(main())

    return run


@pytest.fixture
def new_router(tmp_path: Path) -> Iterator[Callable[..., RouterProcess]]:
    """Starts routers of a test's own."""
    started: list[RouterProcess] = []

    def start(*arguments: str, state: Path = tmp_path / "state", **options: Any) -> RouterProcess:
        started.append(RouterProcess(state, *arguments, **options))
        return started[-1]

    yield start
    for process in started:
        process.stop()
