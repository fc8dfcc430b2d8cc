"""An installation is packed as wheels again, which pip takes without an index."""

from __future__ import annotations

import importlib.metadata as metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from llmgw.onboarding.errors import OnboardError
from llmgw.onboarding.venv_wheels import pack, wheel_of


@pytest.mark.parametrize("name", ["starlette", "msgspec"], ids=["pure", "with a library"])
def test_an_installed_package_becomes_a_wheel_that_pip_installs_as_it_was(tmp_path: Path, name: str) -> None:
    installed = metadata.distribution(name)
    file, content = wheel_of(installed)
    assert (file, content) == wheel_of(installed)
    (tmp_path / file).write_bytes(content)
    target = tmp_path / "target"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--target", str(target), str(tmp_path / file)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named pip" in done.stderr:
        pytest.skip("this Python has no pip")
    assert done.returncode == 0, done.stderr
    for listed in installed.files or []:
        if listed.suffix in (".py", ".so", ".pyi") and ".." not in listed.parts:
            assert (target / listed).read_bytes() == Path(str(installed.locate_file(listed))).read_bytes()


def test_what_pip_noted_beside_a_wheel_and_compiled_from_it_stays_behind(tmp_path: Path) -> None:
    file, content = wheel_of(metadata.distribution("starlette"))
    (tmp_path / file).write_bytes(content)
    names = zipfile.ZipFile(tmp_path / file).namelist()
    assert not [name for name in names if name.endswith((".pyc", "INSTALLER", "REQUESTED", "direct_url.json"))]
    assert sum(name.endswith("/RECORD") for name in names) == 1


def test_a_working_tree_is_not_sent_to_a_node(tmp_path: Path) -> None:
    with pytest.raises(OnboardError, match=r"runs from a working tree .* Name a file of a release with --binary"):
        pack(tmp_path, "cp311", "x86_64")
