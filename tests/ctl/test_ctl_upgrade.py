"""`ctl upgrade`: what is a wrong command line, before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ctl.run_ctl import ctl
from tests.ctl.scripted import ServedAdmin


@pytest.mark.parametrize("names", ["", ",", " , "])
def test_a_list_that_names_no_node_does_not_mean_all_of_them(
    served: ServedAdmin, tmp_path: Path, names: str
) -> None:
    release = tmp_path / "llmgw-0.1.5-linux-x86_64"
    done = ctl("upgrade", "--to", str(release), "--nodes", names, home=tmp_path, served=served)
    assert done.returncode == 2
    assert "--nodes names no node; leave it out to upgrade all" in " ".join(done.stderr.split())
