"""The files that scripts/build makes: what lies in them, and that what they hold is whole."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from llmgw import __version__
from llmgw.release.files import Kind, name_of
from llmgw.release.install import script
from llmgw.release.signature import digest, read_public_key, verify
from tests.endtoend.test_demo import belonging_to
from tests.release.made_up_release import MACHINE, PYTHON

ROOT = Path(__file__).parent.parent.parent
SINGLE = name_of(Kind.SINGLE, __version__, MACHINE)
FOLDER = name_of(Kind.FOLDER, __version__, MACHINE)
WHEELS = name_of(Kind.WHEELS, __version__, MACHINE, PYTHON)
WHEEL = name_of(Kind.WHEEL, __version__)

pytestmark = [pytest.mark.release, pytest.mark.timeout(900)]


def building(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What the scripts start, with the environment of the tests in place of .venv."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "made"
    assert building("scripts.building.sign", "new-key", folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Path:
    """Everything, signed. The environment that is frozen is kept in build/, as for a contributor."""
    out = tmp_path_factory.mktemp("release") / "dist"
    done = building("scripts.building", "--out", out, "--sign", keys / "release-key.pem")
    if "needs a package index" in done.stderr or "could not fetch" in done.stderr:
        pytest.skip("no package index can be reached from here")
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The single file, installed below a root of its own: the program's path."""
    root = tmp_path_factory.mktemp("root")
    install(dist / SINGLE, root)
    return root / "usr/local/bin/llmgw"


def install(file: Path, root: Path) -> None:
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    done = subprocess.run(
        ["/bin/sh", "-s", "--", str(file), file.name, sha256, str(root)],
        input=script(),
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )
    assert (done.returncode, done.stdout) == (0, f"installed {__version__}\n"), done.stderr


def bare(folder: Path, **more: str) -> dict[str, str]:
    """Nothing of this checkout, nor of the environment of the tests."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder), **more}


def test_a_release_is_whole_and_its_checksums_and_signatures_hold(dist: Path, keys: Path) -> None:
    released = [WHEEL, WHEELS, FOLDER, SINGLE]
    others = [f"{SINGLE}.cdx.json", f"{WHEELS.removesuffix('.tar.gz')}.cdx.json", f"llmgw-{__version__}.tar.gz"]
    signatures = [f"{name}.sig" for name in released]
    assert {path.name for path in dist.iterdir()} == {*released, *others, *signatures, "SHA256SUMS"}
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=dist, check=True)
    listed = {line.split()[1] for line in (dist / "SHA256SUMS").read_text().splitlines()}
    assert listed == {*released, *others}
    public = read_public_key((keys / "release.pub").read_bytes(), "release.pub")
    for name in released:
        verify(public, name, digest(dist / name), (dist / f"{name}.sig").read_text())


@pytest.mark.parametrize("name", [FOLDER, SINGLE, WHEELS])
def test_each_installs_and_says_its_version(dist: Path, tmp_path: Path, name: str) -> None:
    install(dist / name, tmp_path)
    program = tmp_path / "usr/local/bin/llmgw"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, env=bare(tmp_path))
    assert said.stdout.startswith(f"llmgw {__version__} (")


@pytest.mark.parametrize("name", [FOLDER, WHEELS])
def test_each_holds_the_licences_of_what_is_inside(dist: Path, name: str) -> None:
    with tarfile.open(dist / name) as tarball:
        top = name.removesuffix(".tar.gz")
        index = tarball.extractfile(f"{top}/LICENSES/INDEX")
        assert index is not None
        listed = {line.split()[0] for line in index.read().decode().splitlines()}
        folders = {one.split("/")[2] for one in tarball.getnames() if one.startswith(f"{top}/LICENSES/")}
        record = tarball.extractfile(f"{top}/BUILD")
        assert record is not None
        assert f"version: {__version__}\n" in record.read().decode()
    bom = json.loads((dist / f"{top}.cdx.json").read_text())
    assert {one["name"] for one in bom["components"]} == listed - {"llmgw"}
    assert {"cryptography", "pydantic", "uvloop"} <= listed
    assert ("python" in listed) == (name == FOLDER)
    assert any(folder.startswith("cryptography-") for folder in folders)
    refs = {one["bom-ref"] for one in bom["components"]} | {bom["metadata"]["component"]["bom-ref"]}
    assert all({one["ref"], *one["dependsOn"]} <= refs for one in bom["dependencies"])
    own = next(one for one in bom["dependencies"] if one["ref"] == bom["metadata"]["component"]["bom-ref"])
    assert any("httpx" in one for one in own["dependsOn"])


def test_the_record_of_glibc_is_what_this_machine_can_run(dist: Path) -> None:
    head = (dist / SINGLE).read_bytes()[:2000].decode(errors="replace")
    needed = next(line for line in head.splitlines() if line.startswith("# glibc: ")).removeprefix("# glibc: ")
    here = platform.libc_ver()[1]
    assert (2, 17) <= tuple(map(int, needed.split("."))) <= tuple(map(int, here.split(".")))


def test_a_whole_demo_runs_from_the_single_file(installed: Path, tmp_path: Path) -> None:
    """Server, store and its migrations, routers, agents, simulated engines, and the fabric's tools."""
    done = subprocess.run(
        [installed, "demo", "--scenario", "node-loss"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
        env=bare(tmp_path),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "scenario node-loss: passed" in done.stdout
    assert belonging_to(str(tmp_path)) == []


def test_examples_and_remedies_come_with_it(installed: Path, tmp_path: Path) -> None:
    examples = installed.resolve().parent / "_internal/llmgw/_examples"
    for command, file in (("server", "server.yaml"), ("agent", "agent.yaml")):
        done = subprocess.run(
            [installed, command, "--config", examples / file, "--check"],
            capture_output=True,
            text=True,
            check=False,
            env=bare(tmp_path),
        )
        assert done.returncode == 0, done.stderr


def test_the_scripts_that_an_upgrade_runs_come_with_it(installed: Path) -> None:
    inside = installed.resolve().parent / "_internal/llmgw/release"
    assert [(inside / name).is_file() for name in ("install.sh", "settle.sh")] == [True, True]


def test_what_it_starts_gets_the_library_path_from_before(installed: Path, tmp_path: Path) -> None:
    """An engine is asked for its version by `engine-check`: a program that tells what it was given."""
    engine = tmp_path / "llama-server"
    engine.write_text(f'#!/bin/sh\nenv > {tmp_path}/given\necho "version: 1 (abc)"\n')
    engine.chmod(0o755)
    subprocess.run(
        [installed, "ctl", "engine-check", "llamacpp", "--bin", engine],
        capture_output=True,
        check=False,
        env=bare(tmp_path, LD_LIBRARY_PATH="/usr/local/cuda/lib64"),
    )
    given = (tmp_path / "given").read_text()
    assert "_internal" not in given
    assert "_PYI_" not in given
    assert "LD_LIBRARY_PATH=/usr/local/cuda/lib64\n" in given
