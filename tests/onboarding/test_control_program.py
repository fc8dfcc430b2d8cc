"""The program on the control host: where it comes from, and what it may not come from."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from llmgw.onboarding.control_program import program, refuse_out_of_reach, running_program
from llmgw.onboarding.local_host import ControlHostError, LocalHost, Ran, run_here
from llmgw.release.files import ReleaseError
from tests.onboarding.control_machine import Machine


def test_a_virtual_environment_is_linked_to_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgw.onboarding.control_program.refuse_out_of_reach", lambda own: None)
    own = tmp_path / "venv/bin/llmgw"
    own.parent.mkdir(parents=True)
    own.touch()
    host = LocalHost(tmp_path / "root")
    [action] = program(host, None, own)
    assert f"link /usr/local/bin/llmgw to {own}" in action.what
    action.do()
    assert os.readlink(host.path("/usr/local/bin/llmgw")) == str(own)
    assert program(host, None, own) == []


def test_an_installed_version_is_switched_to_by_the_release_script(tmp_path: Path) -> None:
    asked: list[list[str]] = []
    host = LocalHost(tmp_path, run=lambda argv, stdin: asked.append(list(argv)) or Ran(0, "", ""))
    [action] = program(host, None, Path("/opt/llmgw/1.2.3-0123456789ab/bin/llmgw"))
    action.do()
    assert asked == [["sh", "-s", "--", "--switch", "/opt/llmgw/1.2.3-0123456789ab", str(tmp_path)]]


def test_a_file_of_a_release_is_installed_once(tmp_path: Path) -> None:
    file = tmp_path / "llmgw-1.2.3-linux-x86_64"
    file.write_bytes(b"program")
    sha256 = hashlib.sha256(b"program").hexdigest()
    asked: list[list[str]] = []
    host = LocalHost(tmp_path / "root", run=lambda argv, stdin: asked.append(list(argv)) or Ran(0, "", ""))
    [action] = program(host, file)
    action.do()
    assert asked[0][3:6] == [str(file), file.name, sha256]
    installed = host.path(f"/opt/llmgw/1.2.3-{sha256[:12]}/bin/llmgw")
    installed.parent.mkdir(parents=True)
    installed.touch()
    host.path("/usr/local/bin").mkdir(parents=True)
    host.path("/usr/local/bin/llmgw").symlink_to(installed)
    assert program(host, file) == []
    # A folder that somebody removed is installed again, though the symlink says that it rules.
    installed.unlink()
    assert len(program(host, file)) == 1


def test_what_the_script_says_is_what_the_operator_hears(tmp_path: Path) -> None:
    file = tmp_path / "llmgw-1.2.3-linux-x86_64.tar.gz"
    file.write_bytes(b"no archive")
    host = LocalHost(tmp_path / "root", run=run_here)
    [action] = program(host, file)
    with pytest.raises(ControlHostError, match=r"llmgw-1.2.3-linux-x86_64.tar.gz was not installed: .*"):
        action.do()


def test_a_file_that_is_no_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="is no file of a release"):
        program(LocalHost(tmp_path), tmp_path / "llmgw")
    with pytest.raises(ControlHostError, match="cannot be read"):
        program(LocalHost(tmp_path), tmp_path / "llmgw-1.2.3-linux-x86_64")


@pytest.mark.parametrize("place", ["/root/.local/bin/llmgw", "/home/ann/venv/bin/llmgw", "/tmp/venv/bin/llmgw"])
def test_an_environment_that_the_units_do_not_see_is_refused(place: str) -> None:
    with pytest.raises(ControlHostError, match=r"do not see; give the file of a release with --binary"):
        refuse_out_of_reach(Path(place))


def test_sources_are_no_program_and_a_host_that_has_one_keeps_it(tmp_path: Path) -> None:
    assert running_program() is None
    with pytest.raises(ControlHostError, match="runs from its sources"):
        program(LocalHost(tmp_path), None)
    assert program(Machine(tmp_path / "root").host, None) == []
