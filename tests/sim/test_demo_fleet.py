"""The demo's fleet: what its servers are told at their start."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.config.load import load_server_config
from llmgw.sim.demo_files import DemoOptions
from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.scenarios.judge import SETTLE_S


def test_a_server_that_is_started_again_waits_longer_for_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DemoFleet, "_spawn", lambda self, *args, **more: None)
    fleet = DemoFleet(DemoOptions(folder=tmp_path / "demo", api_port=0, admin_port=0, agents_port=0))
    fleet.prepare()

    def settle_s() -> float:
        return load_server_config(tmp_path / "demo" / "server.yaml", {}).liveness.settle

    fleet.start_server()
    assert settle_s() == DemoOptions().settle_s
    models = load_server_config(tmp_path / "demo" / "server.yaml", {}).models
    fleet.start_server(settle_s=SETTLE_S)
    assert settle_s() == SETTLE_S
    assert load_server_config(tmp_path / "demo" / "server.yaml", {}).models == models
