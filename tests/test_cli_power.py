"""`llmgw sim power-off` cuts the power of the demo that is meant, and of no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.sim.power import PowerError, running_demo


def demo(folder: Path) -> Path:
    (folder / "node01").mkdir(parents=True)
    (folder / "node01" / "agent.yaml").write_text("")
    return folder


def test_the_demo_whose_state_is_named_is_meant_and_not_the_last_one_started(tmp_path: Path) -> None:
    mine = demo(tmp_path / "mine")
    assert running_demo({"LLMGW_STATE": str(mine / "state")}) == mine


def test_a_state_that_is_no_demos_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PowerError, match="LLMGW_STATE"):
        running_demo({"LLMGW_STATE": str(tmp_path / "state")})
