"""`llmgw sim` breaks a node of the demo that is meant, and of no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.sim.hardware_files import MARKER
from llmgw.sim.power import PowerError, hardware_of, running_demo


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


def test_hardware_is_found_by_its_folder_and_by_the_name_of_a_node_of_the_demo(tmp_path: Path) -> None:
    mine = demo(tmp_path / "mine")
    environ = {"LLMGW_STATE": str(mine / "state")}
    made = mine / "node01" / "hardware"
    made.mkdir()
    (made / MARKER).write_text("{}")
    assert hardware_of(made, environ) == made
    assert hardware_of(mine / "node01", environ) == made
    assert hardware_of(Path("node01"), environ) == made
    for neither in (Path("node02"), tmp_path / "node01"):
        assert hardware_of(neither, environ) == neither
    assert hardware_of(Path("node01"), {"LLMGW_STATE": str(tmp_path / "state")}) == Path("node01"), "no demo"
