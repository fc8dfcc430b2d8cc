"""The scenario `problems` reads what a person reads: the real page and `ctl status`, and misses nothing there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from llmgw.messages.findings import Finding
from llmgw.sim.demo_fleet import DemoError
from llmgw.sim.planted.every import FAULTS
from llmgw.sim.planted.shown import item_tells, overview_items, status_tells
from tests.ctl.run_ctl import ctl
from tests.ctl.scripted import TOKEN, ScriptedBackend, ServedAdmin, node
from tests.test_findings_documented import every_kind

FINDINGS = [
    Finding(
        check="gpu-lost",
        severity="error",
        where=f"node0{number} GPU {number}",
        what=f"GPU {number} is gone & <b>",
        remedy=f"`llmgw ctl drain node0{number}`, then power-cycle it",
    )
    for number in (1, 2)
]


@pytest.fixture
def served() -> Iterator[ServedAdmin]:
    backend = ScriptedBackend()
    backend.nodes_known = [node("node01", findings=FINDINGS)]
    server = ServedAdmin(backend)
    yield server
    server.stop()


def items(served: ServedAdmin, folder: Path, token: str = TOKEN) -> list[str]:
    (folder / "admin.json").write_text(json.dumps({"token": token}))
    fleet: Any = SimpleNamespace(admin=served.url, state=folder)
    return asyncio.run(overview_items(fleet))


def as_told(finding: Finding, **changes: str) -> dict[str, Any]:
    return msgspec.to_builtins(finding) | changes


def test_what_stands_on_the_page_and_in_status_is_read_and_what_does_not_is_missed(
    served: ServedAdmin, tmp_path: Path
) -> None:
    page = items(served, tmp_path)
    status = ctl("status", home=tmp_path, served=served).stdout
    for finding in FINDINGS:
        assert any(item_tells(item, as_told(finding)) for item in page)
        assert status_tells(status, as_told(finding))
        for changes in ({"remedy": "pray"}, {"where": "node09 GPU 9"}):
            assert not any(item_tells(item, as_told(finding, **changes)) for item in page)
            assert not status_tells(status, as_told(finding, **changes))


def test_a_page_without_problems_has_none_and_a_wrong_token_is_told(served: ServedAdmin, tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="logging in"):
        items(served, tmp_path, "another")
    served.backend.nodes_known = []
    assert not any("GPU" in item for item in items(served, tmp_path))


def test_every_planted_fault_names_a_finding_that_there_is() -> None:
    # Names of one word are not told from other words.
    assert {fault.check for fault in FAULTS if "-" in fault.check} <= every_kind()
    assert len({(fault.check, fault.where) for fault in FAULTS}) == len(FAULTS)
    assert len({fault.check for fault in FAULTS}) > 40
