"""The wheel: pure Python, with everything that an installed llmgw needs, and it runs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from llmgw import __version__

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout by the backend that is installed: no network, no second environment."""
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.iterdir()
    return built


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_is_pure_python(wheel: Path) -> None:
    assert wheel.name == f"llmgw-{__version__}-py3-none-any.whl"
    assert not [name for name in names(wheel) if name.endswith((".so", ".pyd", ".dylib"))]


def test_the_wheel_has_every_module_and_nothing_else_of_the_checkout(wheel: Path) -> None:
    packed = {name for name in names(wheel) if name.endswith(".py") and not name.startswith("llmgw/_migrations")}
    assert packed == {str(path.relative_to(ROOT)) for path in (ROOT / "llmgw").rglob("*.py")}
    assert {name.partition("/")[0] for name in names(wheel)} == {"llmgw", f"llmgw-{__version__}.dist-info"}


def test_migrations_and_examples_travel_in_the_wheel(wheel: Path) -> None:
    packed = set(names(wheel))
    for folder, inside in (("migrations", "_migrations"), ("examples", "_examples")):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        assert files
        assert {f"llmgw/{inside}/{path.relative_to(ROOT / folder)}" for path in files} <= packed


def test_the_pages_travel_in_the_wheel(wheel: Path) -> None:
    pages = ROOT / "llmgw" / "server" / "pages"
    files = [path for path in pages.rglob("*") if path.suffix in (".html", ".js", ".css", ".svg")]
    assert len(files) > 20
    assert {str(path.relative_to(ROOT)) for path in files} <= set(names(wheel))


def test_the_wheel_installs_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        points = archive.read(f"llmgw-{__version__}.dist-info/entry_points.txt").decode()
    assert "llmgw = llmgw.__main__:main" in points.splitlines()
    assert "llmgw-provision-node = llmgw.cli.provision:main" in points.splitlines()


def test_llmgw_runs_from_the_wheel_in_any_folder(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environ = {key: value for key, value in os.environ.items() if not key.startswith("LLMGW_")}
    environ["PYTHONPATH"] = str(tmp_path / "site")

    def run(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, *args], cwd=elsewhere, env=environ, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert Path(run("-c", "import llmgw; print(llmgw.__file__)").strip()).is_relative_to(tmp_path / "site")
    assert "Commands:" in run("-m", "llmgw", "--help")
    example = tmp_path / "site" / "llmgw" / "_examples" / "server.yaml"
    assert run("-m", "llmgw", "server", "--check", "--config", str(example)) == f"{example}: good\n"
