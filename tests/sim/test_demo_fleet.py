"""The demo's fleet: what its servers are told at their start, and what is said without one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from llmgw.config.load import load_server_config
from llmgw.sim.demo import _watch_plainly
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


def test_a_demo_without_a_server_says_so_once_and_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    async def get(path: str) -> list[Any]:
        asked.append(path)
        if len(asked) > 4:
            raise asyncio.CancelledError
        if len(asked) == 3:
            return []
        raise httpx.ConnectError("nothing listens")

    fleet: Any = SimpleNamespace(api="http://a", admin="http://b", state=tmp_path, folder=tmp_path, get=get)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(_watch_plainly(fleet))
    told = [line for line in capsys.readouterr().out.splitlines() if "does not answer" in line]
    assert len(told) == 2, "once for each time that it went"
    assert told[0].endswith(f"Start it again: llmgw server --config {tmp_path / 'server.yaml'}")
