"""`llmgw ctl release verify`, on files that are signed in the test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.building.sign import main as sign
from tests.release.made_up_release import folder_tarball, sha256


@pytest.fixture
def released(tmp_path: Path) -> tuple[Path, Path]:
    """A signed file, and the key to verify it with."""
    (tmp_path / "dist").mkdir()
    file = folder_tarball(tmp_path / "dist")
    assert sign(["new-key", str(tmp_path / "keys")]) == 0
    assert sign(["files", str(tmp_path / "keys/release-key.pem"), str(tmp_path / "dist")]) == 0
    return file, tmp_path / "keys/release.pub"


def verify(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llmgw", "ctl", "release", "verify", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def test_a_signed_file_is_what_it_says(released: tuple[Path, Path]) -> None:
    file, key = released
    done = verify(file, "--key", key, "-o", "json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said == {"file": file.name, "version": "1.2.3", "kind": "folder", "sha256": sha256(file)}
    assert sha256(file) in verify(file, "--key", key).stdout


def test_a_changed_or_renamed_file_is_refused(released: tuple[Path, Path]) -> None:
    file, key = released
    signature = file.with_name(file.name + ".sig")
    renamed = file.with_name(file.name.replace("1.2.3", "1.2.4"))
    renamed.write_bytes(file.read_bytes())
    with file.open("ab") as more:
        more.write(b"!")
    for one in (file, renamed):
        done = verify(one, "--key", key, "--signature", signature)
        assert done.returncode == 1
        assert f"signature of {one.name}" in done.stderr
        assert "Traceback" not in done.stderr


def test_what_is_missing_is_named(released: tuple[Path, Path]) -> None:
    file, key = released
    done = verify(file, "--key", key.with_name("no.pub"))
    assert (done.returncode, "no.pub" in done.stderr) == (1, True)
    file.with_name(file.name + ".sig").unlink()
    done = verify(file, "--key", key)
    assert (done.returncode, f"{file.name}.sig" in done.stderr) == (1, True)
