"""The default of --binary: this very program, in its own kind, as install.sh takes it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw import __version__
from llmgw.onboarding.errors import OnboardError
from llmgw.onboarding.program import Program, own, what_own_would_be
from llmgw.release.files import Kind
from tests.onboarding.machine import REPOSITORY

INSTALL = REPOSITORY / "llmgw" / "release" / "install.sh"


def install(program: Program, root: Path) -> str:
    """Install as on a node; what its llmgw says of its version."""
    root.mkdir()
    command = ["sh", str(INSTALL), str(program.path), program.file.name, program.sha256, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (root / "opt" / "llmgw" / program.folder).is_dir()
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(root)}
    said = subprocess.run(
        [str(root / "usr/local/bin/llmgw"), "--version"], env=bare, capture_output=True, text=True
    )
    return said.stdout


def test_a_program_with_its_own_python_sends_the_folder_that_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "there" / "bin" / "llmgw"
    (program.parent / "_internal").mkdir(parents=True)
    (program.parent / "_internal" / "base.so").write_bytes(b"library")
    program.write_text(f"#!/bin/sh\necho llmgw {__version__}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(program))
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    packed = own(first)
    assert packed.file == what_own_would_be()
    assert (packed.file.kind, packed.file.machine) == (Kind.FOLDER, platform.machine())
    os.utime(program, (1, 1))
    assert own(second).sha256 == packed.sha256
    assert install(packed, tmp_path / "root") == f"llmgw {__version__}\n"
    installed = tmp_path / "root" / "opt" / "llmgw" / packed.folder
    assert (installed / "bin" / "_internal" / "base.so").read_bytes() == b"library"


def test_a_program_that_lies_in_no_folder_of_its_own_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "llmgw"))
    with pytest.raises(OnboardError, match="name a file of a release with --binary"):
        what_own_would_be()


@pytest.mark.scenario
@pytest.mark.timeout(420)
def test_an_installation_sends_its_wheels_and_a_node_needs_no_index(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("this Python has no pip")
    place = tmp_path / "site"
    command = [
        *pip,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
        str(place),
    ]
    done = subprocess.run([*command, str(REPOSITORY)], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    packing = (
        "import sys; from pathlib import Path; from llmgw.onboarding.program import own; "
        "print(own(Path(sys.argv[1])).path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", packing, str(tmp_path)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(place)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    from llmgw.onboarding.program import named

    packed = named(Path(done.stdout.strip()), None)
    assert packed.file.kind is Kind.WHEELS
    assert install(packed, tmp_path / "root").startswith(f"llmgw {__version__}")
