"""The unit files: found wherever the program lies, and what systemd takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.release.files import ReleaseError
from llmgw.release.layout import PROGRAM
from llmgw.release.units import UNIT_NAMES, unit_text

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.parametrize("name", UNIT_NAMES)
def test_a_unit_is_found_in_a_checkout(name: str) -> None:
    assert unit_text(name) == (EXAMPLES / name).read_text()


def test_a_frozen_program_has_its_units_where_it_was_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "llmgw" / "_examples"
    folder.mkdir(parents=True)
    (folder / "llmgw-agent.service").write_text("[Unit]\n")
    monkeypatch.setattr(sys, "_MEIPASS", str(tmp_path), raising=False)
    assert unit_text("llmgw-agent.service") == "[Unit]\n"


def test_a_unit_that_is_not_ours_or_not_there_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ReleaseError, match=r"no unit of llmgw, whose units are llmgw-agent\.service"):
        unit_text("../../etc/passwd")
    monkeypatch.setattr("llmgw.release.units.example_folders", lambda: [tmp_path])
    with pytest.raises(ReleaseError, match=r"lacks its unit file llmgw-agent\.service"):
        unit_text("llmgw-agent.service")


def test_systemd_takes_every_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    # The program need not be installed to judge its units: another that is there stands in its place.
    for name in UNIT_NAMES:
        (tmp_path / name).write_text(unit_text(name).replace(PROGRAM, "/bin/true"))
    paths = [str(tmp_path / name) for name in UNIT_NAMES]
    done = subprocess.run([analyze, "verify", *paths], capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if "llmgw" in line]
    assert not said, done.stderr
