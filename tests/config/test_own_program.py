"""How llmgw starts itself, as a package and as a build that holds its own Python."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.config.own_program import leave_own_libraries, own_module, own_program, run_as_module

PACKAGE = Path(__file__).parent.parent.parent / "llmgw"


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", "/opt/llmgw/1.2.3-0123456789ab/bin/llmgw")


def test_a_package_starts_itself_with_its_interpreter() -> None:
    done = subprocess.run(own_program("--version"), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("llmgw ")
    done = subprocess.run(own_module("llmgw", "--version"), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("llmgw ")


@pytest.mark.usefixtures("frozen")
def test_a_build_with_its_own_python_starts_itself() -> None:
    assert own_program("router", "--x") == ["/opt/llmgw/1.2.3-0123456789ab/bin/llmgw", "router", "--x"]


@pytest.mark.usefixtures("frozen")
def test_a_build_runs_its_modules_as_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["llmgw"])
    with pytest.raises(SystemExit) as ended:
        run_as_module(
            ["llmgw", "-m", "llmgw.sim.fabric.programs", "saquery", "/hardware", "/fabric", "--version"]
        )
    assert not ended.value.code
    assert "saquery BUILD VERSION" in capsys.readouterr().out


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize(
    "argv", [["llmgw", "--version"], ["llmgw", "-m"], ["llmgw", "-m", "http.server"], ["llmgw"]]
)
def test_a_build_runs_no_other_modules(argv: list[str]) -> None:
    assert not run_as_module(argv)


def test_a_package_leaves_dash_m_to_the_interpreter() -> None:
    assert not run_as_module(["llmgw", "-m", "llmgw.sim.fabric.programs"])


@pytest.mark.usefixtures("frozen")
def test_what_a_build_starts_gets_the_library_path_from_before() -> None:
    environ = {
        "LD_LIBRARY_PATH": "/opt/llmgw/x/bin/_internal:/usr/local/cuda/lib64",
        "LD_LIBRARY_PATH_ORIG": "/usr/local/cuda/lib64",
        "_PYI_ARCHIVE_FILE": "/opt/llmgw/x/bin/llmgw",
        "PATH": "/bin",
    }
    leave_own_libraries(environ)
    assert environ == {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64", "PATH": "/bin"}
    environ = {"LD_LIBRARY_PATH": "/opt/llmgw/x/bin/_internal"}
    leave_own_libraries(environ)
    assert environ == {}


def test_a_package_leaves_the_library_path_alone() -> None:
    environ = {"LD_LIBRARY_PATH": "/a", "LD_LIBRARY_PATH_ORIG": "/b"}
    leave_own_libraries(environ)
    assert environ == {"LD_LIBRARY_PATH": "/a", "LD_LIBRARY_PATH_ORIG": "/b"}


def test_nobody_else_starts_an_interpreter_for_llmgw() -> None:
    """`sys.executable -m llmgw` works in a checkout, and not in a build that holds its own Python."""
    command_lines = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.List | ast.Tuple)
        and any(ast.unparse(element) in ("sys.executable", "str(sys.executable)") for element in node.elts)
    ]
    assert set(command_lines) == {"config/own_program.py"}
