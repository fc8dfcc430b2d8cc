"""Transient scopes: what an engine starts cannot leave them.

A program stands in for systemd-run and makes real cgroups, where this machine lets a test make some.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from llmgw.agent.processes import read_marker, uncovered
from llmgw.agent.scopes import SLICE, Scopes, find_scopes, read_scope
from tests.agent.fakes import ProgramAdapter, make_config, make_spec, make_supervisor
from tests.agent.test_engine_user import PYTHON, nobody, open_dir  # noqa: F401
from tests.agent.test_supervisor import PORTS, Running, alive, run
from tests.agent.waiting import wait_until

# The hierarchy that systemd keeps for itself: of its own in version 1, the only one in version 2.
HIERARCHIES = [Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup")]

STAND_IN = """#!/bin/sh
# systemd-run --scope: makes the cgroup, goes into it, and becomes the program.
while [ "$1" != -- ]; do
    case $1 in --slice=*) slice=${1#*=};; --unit=*) unit=${1#*=};; --scope) scope=1;; esac
    shift
done
shift
[ -n "$scope" ] || exit 64
mkdir -p "CGROUP/$slice/$unit" && echo $$ > "CGROUP/$slice/$unit/cgroup.procs" || exit 65
exec "$@"
"""


def cgroup_root() -> Path | None:
    """Where a test may make cgroups; None where it may not."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None or Path("/run/systemd/system").is_dir():
        return None
    for root in HIERARCHIES:
        trial = root / f"llmgw-test-{os.getpid()}"
        with suppress(OSError):
            if (root / "cgroup.procs").exists():
                trial.mkdir()
                trial.rmdir()
                return root
    return None


CGROUPS = cgroup_root()
real = pytest.mark.skipif(CGROUPS is None, reason="no cgroups can be made here")


@pytest.fixture
def scopes(open_dir: Path) -> Iterator[Scopes]:  # noqa: F811
    program = open_dir / "systemd-run"
    program.write_text(STAND_IN.replace("CGROUP", str(CGROUPS)))
    program.chmod(0o755)
    work = open_dir / "work"
    found = Scopes(os.path.realpath(work), systemd_run=str(program), setpriv=shutil.which("setpriv"))
    yield found
    for info in uncovered(os.path.realpath(work), [], scopes=found):
        os.kill(info.pid, signal.SIGKILL)
    assert CGROUPS is not None
    for folder in [*(CGROUPS / SLICE).glob("*.scope"), CGROUPS / SLICE]:
        wait_until(lambda folder=folder: gone(folder), f"{folder} is empty")  # type: ignore[misc]


def gone(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists() or folder.name == SLICE


@real
def test_what_left_session_marker_and_parent_is_ended_with_its_scope(scopes: Scopes, open_dir: Path) -> None:  # noqa: F811
    work = open_dir / "work"

    async def test() -> None:
        supervisor = make_supervisor(make_config(work, port_range=PORTS), scopes=scopes)
        await supervisor.adopt()
        node = Running(supervisor, work)
        try:
            await supervisor.start(make_spec("r1-0", "has-escaped", "sidecar:sleeps"))
            ready = await node.reach("ready")
            pid = ready.engine_pid
            assert pid is not None
            escaped = int((work / "shards" / "r1-0" / "run" / "escaped.pid").read_text())
            assert read_scope(pid) == read_scope(escaped) == scopes.unit("r1-0", "engine")
            assert read_marker(pid) == ("r1-0", os.path.realpath(work))
            assert read_marker(escaped) is None
            os.kill(pid, signal.SIGKILL)
            await node.reach("failed")
            assert not alive(escaped)

            await supervisor.start(make_spec("r2-0", "has-escaped"))
            ready = await node.reach("ready", "r2-0")
            escaped = int((work / "shards" / "r2-0" / "run" / "escaped.pid").read_text())
            await supervisor.stop("r2-0", "enough")
            await node.reach("stopped", "r2-0")
            assert not alive(escaped)
        finally:
            await supervisor.close()

    run(test)


@real
def test_a_scope_whose_shard_nothing_describes_is_ended_by_the_next_agent(
    scopes: Scopes,
    open_dir: Path,  # noqa: F811
) -> None:
    work = open_dir / "work"

    async def test() -> None:
        first = make_supervisor(make_config(work, port_range=PORTS), scopes=scopes)
        await first.adopt()
        node = Running(first, work)
        await first.start(make_spec("r1-0", "has-escaped"))
        await first.start(make_spec("r2-0", "has-escaped"))
        await node.reach("ready")
        kept = await node.reach("ready", "r2-0")
        await first.close()
        escaped, other = (
            int((work / "shards" / name / "run" / "escaped.pid").read_text()) for name in ("r1-0", "r2-0")
        )
        (work / "shards" / "r1-0" / "shard.json").unlink()

        second = make_supervisor(make_config(work, port_range=PORTS), scopes=scopes)
        await second.adopt()
        [held] = await second.held()
        assert (held.spec.shard_id, held.engine_pid) == ("r2-0", kept.engine_pid)
        assert not alive(escaped)
        assert alive(other)
        await second.close()

    run(test)


@pytest.mark.skipif(
    CGROUPS is None or PYTHON is None, reason="no cgroups can be made here, or nobody runs no Python"
)
def test_a_scope_is_made_as_root_and_what_runs_in_it_is_the_user_s(
    scopes: Scopes,
    open_dir: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = nobody()
    monkeypatch.setattr(ProgramAdapter, "python", PYTHON)

    async def test() -> None:
        work = open_dir / "work"
        supervisor = make_supervisor(make_config(work, port_range=PORTS), scopes=scopes, account=account)
        await supervisor.adopt()
        try:
            await supervisor.start(make_spec())
            ready = await Running(supervisor, work).reach("ready")
            status = Path(f"/proc/{ready.engine_pid}/status").read_text()
            facts = {line.partition(":")[0]: line.partition(":")[2].split() for line in status.splitlines()}
            assert facts["Uid"] == [str(account.uid)] * 4
            assert sorted(map(int, facts["Groups"])) == account.groups()
            assert ready.engine_pid is not None
            assert read_scope(ready.engine_pid) == scopes.unit("r1-0", "engine")
        finally:
            await supervisor.close()

    run(test)


def test_the_command_is_systemd_run_s_and_every_name_is_one_that_a_unit_can_have() -> None:
    scopes = Scopes("/var/lib/llmgw-agent", systemd_run="/usr/bin/systemd-run", setpriv="/usr/bin/setpriv")
    command = scopes.wrap(["vllm", "serve", "x"], "org/big@1+2.0".replace("/", "-"), "engine", None)
    assert command is not None
    assert command[:4] == ["/usr/bin/systemd-run", "--scope", "--quiet", "--collect"]
    assert command[-4:] == ["--", "vllm", "serve", "x"]
    unit = next(word.partition("=")[2] for word in command if word.startswith("--unit="))
    assert unit.endswith("-engine.scope")
    assert not set(unit) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.")
    assert len(scopes.unit("x" * 128, "y" * 64)) < 256  # systemd.unit(5)
    assert scopes.unit("a@b", "engine") != scopes.unit("a+b", "engine")
    assert Scopes("/w", systemd_run=None).wrap(["x"], "a", "engine", None) is None


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/llmgw.slice/llmgw-1-a-2-engine.scope\n", "llmgw-1-a-2-engine.scope"),
        ("1:name=systemd:/llmgw.slice/x.scope/deeper\n0::/\n", "x.scope"),
        ("0::/system.slice/llmgw-agent.service\n", None),
        ("0::/llmgw.slice\n", None),
        ("", None),
    ],
)
def test_a_process_s_scope_is_read_from_either_version_of_cgroups(
    tmp_path: Path, text: str, unit: str | None
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(text)
    assert read_scope(7, tmp_path) == unit
    assert read_scope(8, tmp_path) is None


def test_without_systemd_there_are_no_scopes(tmp_path: Path) -> None:
    assert find_scopes("/w", booted=tmp_path / "absent") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="scopes are root's to make")
def test_a_systemd_that_makes_no_scope_costs_the_scope_and_not_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "systemd-run"
    program.write_text("#!/bin/sh\necho 'Failed to connect to bus: No such file or directory' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = asyncio.run(asyncio.to_thread(find_scopes, "/w", booted=tmp_path))
    assert found is not None
    assert found.wrap(["x"], "a", "engine", None) is None
    assert "Failed to connect to bus" in capsys.readouterr().out
