"""The command line through real processes: help, exit codes, and a sentence instead of every traceback."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from llmgw import __version__
from llmgw.cli.errors import ending, report_path
from llmgw.config.errors import ConfigError, SentenceError

ROOT = Path(__file__).parent.parent
COMMANDS = [
    "server",
    "agent",
    "ctl",
    "doctor",
    "provision-node",
    "onboard-node",
    "inspect",
    "router",
    "demo",
    "sim",
    "version",
]


def environment(**more: str) -> dict[str, str]:
    """This process's environment without our variables, with this checkout first on the path."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LLMGW_")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def llmgw(*args: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmgw", *args],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=90,
    )


def test_help_lists_every_command(tmp_path: Path) -> None:
    done = llmgw("--help", cwd=tmp_path)
    assert done.returncode == 0
    listed = [line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()]
    assert listed == COMMANDS
    assert llmgw(cwd=tmp_path).stdout == done.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "command", ["inspect gpus -", "ctl engine-check vllm --help-file -", "--help", "version"]
)
def test_closed_standard_streams_are_no_defect(tmp_path: Path, command: str, closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m llmgw {command} {closed}"],
        cwd=tmp_path,
        env=environment(HOME=str(tmp_path)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )
    codes = {"inspect gpus -": 1, "ctl engine-check vllm --help-file -": 2}
    assert done.returncode == codes.get(command, 0), done.stderr
    assert "defect" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["inspect", "gpus", "-"], "a line of its output could not be read: oddity"),
        (["ctl", "engine-check", "vllm", "--help-file", "-"], "it begins with 'oddity'"),
        (["ctl", "apply", "-"], "standard input line 1: must be keys with values"),
    ],
)
def test_a_dash_reads_a_socket_as_well_as_a_pipe(tmp_path: Path, command: list[str], said: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"oddity\n")
        ours.shutdown(socket.SHUT_WR)
        done = subprocess.run(
            [sys.executable, "-m", "llmgw", *command],
            cwd=tmp_path,
            env=environment(HOME=str(tmp_path)),
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=90,
        )
    assert said in done.stdout + done.stderr


def test_help_costs_less_than_300_ms_of_cpu(tmp_path: Path) -> None:
    # Not the wall clock's: the machine may be busy with something else, the imports may not be many.
    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    costs = []
    for _ in range(3):
        before = spent()
        assert llmgw("--help", cwd=tmp_path).returncode == 0
        costs.append(spent() - before)
    assert min(costs) < 0.3, costs


def test_help_imports_none_of_the_heavy_packages() -> None:
    script = (
        "import sys; sys.argv = ['llmgw', '--help']\n"
        "from llmgw.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'rich', 'pydantic', 'msgspec', 'httpx', 'sqlalchemy', 'structlog', 'yaml', 'asyncio'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=90
    )
    assert done.stdout.splitlines()[-1] == "LOADED []"


@pytest.mark.parametrize("args", [["--version"], ["version"]])
def test_the_version_is_printed(tmp_path: Path, args: list[str]) -> None:
    assert llmgw(*args, cwd=tmp_path).stdout == f"llmgw {__version__}\n"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["serve"], "error: No such command 'serve'"),
        (["server", "--cofig", "x"], "error: No such option: --cofig"),
        (["server", "x"], "error: No such command 'x'"),
        (["agent", "x"], "error: Got unexpected extra argument"),
        (["server", "--config"], "error: Option '--config' requires an argument"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_2(tmp_path: Path, args: list[str], sentence: str) -> None:
    done = llmgw(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1
    assert "--help" in done.stderr


def test_a_bad_server_yaml_is_a_sentence_a_mistake_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("listen: 127.0.0.1:8080\nrouter:\n  drain_graze: 3s\nstate: [x]\n")
    done = llmgw("server", "--config", "bad.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "error: bad.yaml line 3: router.drain_graze: unknown key; did you mean drain_grace?\n"
        "error: bad.yaml line 4: state: must be text, got a list\n"
    )


def test_a_bad_agent_yaml_is_a_sentence_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("server: gateway:8443\n")
    done = llmgw("agent", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "error: agent.yaml line 1: server: 'gateway:8443' is not an address like https://gateway.example.org:8443\n"
    )


def test_a_bad_override_is_a_sentence_that_names_the_variable(tmp_path: Path) -> None:
    done = llmgw("server", cwd=tmp_path, LLMGW_SERVER__LISTN="127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr == "error: environment variable LLMGW_SERVER__LISTN: no such key; did you mean listen?\n"


def test_check_says_whether_a_configuration_is_good(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text("listen: 127.0.0.1:8080\n")
    done = llmgw("server", "--check", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "server.yaml: good\n")
    done = llmgw("agent", "--check", cwd=tmp_path, LLMGW_AGENT__SERVER="https://gw:8443")
    assert (done.returncode, done.stdout) == (0, "the environment: good\n")


def test_a_log_level_that_does_not_exist_is_a_sentence(tmp_path: Path) -> None:
    done = llmgw("server", cwd=tmp_path, LLMGW_LOG_LEVEL="loud")
    assert done.returncode == 1
    assert done.stderr == (
        "error: environment variable LLMGW_LOG_LEVEL: must be one of debug, info, warning, error, critical, "
        "got 'loud'\n"
    )


def raising(error: BaseException) -> int:
    def main() -> None:
        raise error

    return ending(main)


def test_a_sentence_error_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    class Busy(SentenceError):
        exit_code = 3

    assert raising(Busy("port 8080 is taken")) == 3
    assert capsys.readouterr().err == "error: port 8080 is taken\n"


def test_sentences_of_tasks_that_failed_together_are_all_printed(capsys: pytest.CaptureFixture[str]) -> None:
    group = BaseExceptionGroup("tasks", [ConfigError("one\ntwo"), ExceptionGroup("", [SentenceError("three")])])
    assert raising(group) == 1
    assert capsys.readouterr().err == "error: one\nerror: two\nerror: three\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SystemExit(), 0),
        (SystemExit(5), 5),
        (typer.Exit(4), 4),
        (KeyboardInterrupt(), 130),
        (BaseExceptionGroup("tasks", [KeyboardInterrupt(), SentenceError("x")]), 130),
    ],
)
def test_exits_and_interruptions_say_nothing(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    assert raising(error) == code
    assert capsys.readouterr().err == ""


def test_an_answer_that_is_not_given_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(typer.Abort()) == 1
    assert capsys.readouterr().err == "error: not confirmed\n"


def test_a_defect_is_one_sentence_and_its_traceback_lies_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LLMGW_DEBUG", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert raising(ZeroDivisionError("no\nway")) == 1
    (report,) = (tmp_path / "llmgw").iterdir()
    assert capsys.readouterr().err == (
        f"error: this is a defect in llmgw (ZeroDivisionError: no); the traceback is in {report}\n"
    )
    assert "Traceback" in report.read_text()
    assert report.stat().st_mode & 0o777 == 0o600


def test_a_defect_shows_its_traceback_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLMGW_DEBUG", "1")
    assert raising(ZeroDivisionError("no way")) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_report_goes_to_the_next_folder_when_one_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = report_path(ValueError("x"), {"XDG_STATE_HOME": str(tmp_path / "file")})
    assert path is not None
    assert tmp_path not in path.parents
    path.unlink()


def test_a_pipe_that_breaks_elsewhere_is_a_defect_and_not_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LLMGW_DEBUG", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert raising(BrokenPipeError(32, "Broken pipe")) == 1
    assert "BrokenPipeError" in capsys.readouterr().err


def python(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_reader_that_leaves_is_no_error() -> None:
    script = (
        "from llmgw.cli.errors import ending\n"
        "def main():\n"
        "    for _ in range(1_000_000): print('line')\n"
        "raise SystemExit(ending(main))\n"
    )
    with python(script) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "line\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(10) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_disk_that_takes_no_output_is_told_and_is_no_defect(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "llmgw", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(),
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: the output could not be written (No space left on device)")
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_ends_with_130_and_silence() -> None:
    script = (
        "import signal\n"
        "from llmgw.cli.errors import ending\n"
        "def main():\n"
        "    print('up', flush=True)\n"
        "    while True: signal.pause()\n"
        "raise SystemExit(ending(main))\n"
    )
    with python(script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=40)
        assert (process.returncode, out, err) == (130, "", "")


def test_a_command_that_is_not_installed_does_not_break_the_others(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['llmgw', *sys.argv[1:]]\n"
        "from llmgw.cli import app\n"
        "app.COMMANDS['gone'] = app.LazyCommand('llmgw.cli.gone', 'gone', 'Gone.')\n"
        "app.COMMANDS['needy'] = app.LazyCommand('not_there', 'needy', 'Needs a package.')\n"
        "app.run()\n"
    )

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, *args], env=environment(), capture_output=True, text=True, timeout=90
        )

    assert "Gone." in run("--help").stdout
    assert run("server", "--check").returncode == 0
    gone = run("gone")
    assert (gone.returncode, gone.stderr) == (
        1,
        "error: this installation has no `llmgw gone` (llmgw.cli.gone is missing)\n",
    )
    assert "needs the Python package not_there, which is not installed" in run("needy").stderr


def test_server_install_without_root_or_systemd_is_a_sentence(tmp_path: Path) -> None:
    if os.geteuid() == 0 and Path("/run/systemd/system").is_dir():
        pytest.skip("a dry run works here")
    done = llmgw("server", "install", "--dry-run", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"error: (Only root can|This machine is not run by systemd).*\n", done.stderr)
