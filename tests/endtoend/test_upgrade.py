"""Agents become another release by `llmgw ctl upgrade`, and what goes wrong on the way stops there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmgw import __version__
from llmgw.sim.load import Load
from tests.endtoend.conftest import until
from tests.endtoend.upgradable import NEWER, UpgradableFleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpgradableFleet]:
    upgradable = UpgradableFleet(tmp_path_factory.mktemp("upgrade"))
    try:
        upgradable.running.wait_ready()
        yield upgradable
    finally:
        upgradable.close()


def test_agents_are_upgraded_under_load_without_a_failed_request_and_with_the_same_engines(
    fleet: UpgradableFleet,
) -> None:
    release = fleet.publisher.release(NEWER, padding=9_000_000)
    engines = fleet.engine_pids()
    load = Load(fleet.demo.api, ["demo/big", "demo/small"])

    async def start() -> None:
        load.start()

    fleet.running.run(start())
    done = fleet.running.ctl("upgrade", "--to", str(release), timeout_s=100)
    fleet.running.run(load.stop())

    assert fleet.versions() == dict.fromkeys(fleet.demo.nodes, NEWER), done.stderr
    assert fleet.engine_pids() == engines
    assert not load.failed
    assert load.counts()["served"] > 10
    assert "4 of 4 nodes" in done.stdout
    assert f"upgraded from llmgw {__version__} to {NEWER}" in done.stdout
    assert until(lambda: not list((fleet.demo.state / "releases").iterdir()))
    assert [event for event, _ in fleet.running.history("node01") if event == "upgraded"] == ["upgraded"]
