"""Engines of a root agent run as a user of their own, with the groups of their devices and no others."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent.processes import uncovered
from llmgw.agent.run_folder import NotReady, prepare, run_folder
from llmgw.config.agent import Weights
from llmgw.engines.base import LaunchPlan, PlanFile, ProcessPlan
from llmgw.hardware.engine_user import Account, EngineUserError, find_account
from tests.agent.fakes import PROGRAM, ProgramAdapter, make_config, make_spec, make_supervisor
from tests.agent.file_server import FileServer
from tests.agent.test_supervisor import PORTS, Running, run
from tests.agent.waiting import until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as another user")


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A folder that others can pass through, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="llmgw-engine-user-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def nobody() -> Account:
    found = find_account("nobody", 0)
    assert found is not None
    return found


def python_of_nobody() -> str | None:
    """An interpreter that nobody may run; the one of this test often lies in root's home."""
    if os.geteuid() != 0 or nobody().unreadable([str(PROGRAM)]):
        return None
    found = [path for path in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")) if path]
    return next((path for path in found if not nobody().cannot_run(path)), None)


PYTHON = python_of_nobody()
CONTENT = b"GGUF" + bytes(100_000)


def no_user(name: str) -> pwd.struct_passwd:
    raise KeyError(name)


def a_user(name: str) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", 990, 990, "", f"/home/{name}", "/bin/sh"))


def test_the_default_is_the_user_for_engines_where_it_exists_and_the_agent_is_root() -> None:
    assert find_account(None, 0, no_user) is None
    found = find_account(None, 0, a_user)
    assert found is not None
    assert (found.name, found.uid) == ("llmgw-engine", 990)
    assert find_account(None, 1000, a_user) is None


def test_a_user_that_cannot_be_is_said_with_what_to_do() -> None:
    with pytest.raises(EngineUserError, match="no such user; make it with useradd"):
        find_account("engines", 0, no_user)
    with pytest.raises(
        EngineUserError, match="only root starts processes as another user; run the agent as root"
    ):
        find_account("engines", 1000, a_user)
    assert find_account("engines", 990, a_user) is None  # the agent is that user


def test_groups_are_the_user_s_own_and_those_that_open_device_files_and_never_root_s(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files to groups")
    (tmp_path / "infiniband").mkdir()
    for name, gid, mode in [
        ("nvidia0", 4001, 0o660),
        ("nvidia1", 4002, 0o666),  # open to all: its group adds nothing
        ("nvidia2", 0, 0o660),
        ("infiniband/uverbs0", 4003, 0o660),
        ("infiniband/umad0", 4004, 0o600),
        ("other", 4005, 0o660),
    ]:
        path = tmp_path / name
        path.touch()
        os.chown(path, 0, gid)
        path.chmod(mode)
    account = nobody()
    added = set(account.groups(tmp_path)) - set(os.getgrouplist(account.name, account.gid))
    named = {entry.gr_gid for entry in grp.getgrall() if entry.gr_name in ("render", "video")}
    assert added == {4001, 4003} | named


@as_root
def test_device_files_that_the_user_may_not_open_are_named(open_dir: Path) -> None:
    for name, mode in [("nvidia0", 0o600), ("nvidia1", 0o666)]:
        (open_dir / name).touch()
        (open_dir / name).chmod(mode)
    assert nobody().closed_devices(open_dir) == [str(open_dir / "nvidia0")]


@pytest.mark.skipif(PYTHON is None, reason="needs root, and a checkout and a Python that nobody may read")
def test_an_engine_runs_as_the_user_with_its_output_kept_by_the_agent(
    open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = nobody()
    monkeypatch.setattr(ProgramAdapter, "python", PYTHON)

    async def test() -> None:
        supervisor = make_supervisor(make_config(open_dir / "work", port_range=PORTS), account=account)
        await supervisor.adopt()
        node = Running(supervisor, open_dir)
        try:
            await supervisor.start(make_spec("r1-0", "sidecar:sleeps"))
            ready = await node.reach("ready")
            status = Path(f"/proc/{ready.engine_pid}/status").read_text()
            facts = {line.partition(":")[0]: line.partition(":")[2].split() for line in status.splitlines()}
            assert facts["Uid"] == [str(account.uid)] * 4
            assert facts["Gid"] == [str(account.gid)] * 4
            assert sorted(map(int, facts["Groups"])) == account.groups()
            folder = open_dir / "work" / "shards" / "r1-0"
            environment = json.loads((folder / "run" / "environment.json").read_text())
            assert environment["HOME"] == str(folder / "run")
            assert (folder / "run").stat().st_uid == account.uid
            # What the agent goes by is out of the engine's reach.
            for name in ("shard.json", "engine.log", "sidecar.log"):
                stat = (folder / name).stat()
                assert (stat.st_uid, stat.st_mode & 0o777) == (0, 0o600)
            assert folder.stat().st_uid == 0
            assert "engine serves" in (folder / "engine.log").read_text()
            assert account.unreadable([str(folder / "shard.json")]) == [str(folder / "shard.json")]
            await supervisor.stop("r1-0", "enough")
            assert (await node.reach("stopped")).exit_code is not None
        finally:
            await supervisor.close()
            for info in uncovered(supervisor.work_dir, []):
                os.kill(info.pid, signal.SIGKILL)

    run(test)


@pytest.mark.skipif(PYTHON is None, reason="needs root, and a checkout and a Python that nobody may read")
def test_an_engine_reads_what_a_strict_root_agent_fetched_for_it(
    open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProgramAdapter, "python", PYTHON)

    async def test() -> None:
        supervisor = make_supervisor(make_config(open_dir / "work", port_range=PORTS), account=nobody())
        (open_dir / "work").mkdir(mode=0o700, exist_ok=True)
        await supervisor.adopt()
        node = Running(supervisor, open_dir)
        try:
            with FileServer(CONTENT) as files:
                await supervisor.start(make_spec("r1-0", source=files.url()))
                await node.reach("ready")
            log = open_dir / "work" / "shards" / "r1-0" / "engine.log"
            assert f"engine reads {len(CONTENT)} bytes" in log.read_text()
            # It passes through the work dir, and finds nothing there that it could change.
            weights = open_dir / "work" / "weights"
            assert (weights.parent.stat().st_mode & 0o777, weights.stat().st_mode & 0o777) == (0o711, 0o755)
            assert all(path.stat().st_uid == 0 for path in [weights, *weights.rglob("*")])
        finally:
            await supervisor.stop("r1-0", "enough")
            await node.reach("stopped")
            await supervisor.close()

    before = os.umask(0o077)
    try:
        run(test)
    finally:
        os.umask(before)


@as_root
def test_nothing_is_fetched_to_where_the_user_does_not_get(open_dir: Path) -> None:
    closed = open_dir / "closed"
    closed.mkdir(mode=0o700)

    async def test() -> None:
        config = make_config(open_dir / "work", port_range=PORTS)
        config = config.model_copy(update={"weights": Weights(dir=str(closed / "weights"))})
        supervisor = make_supervisor(config, account=nobody())
        await supervisor.adopt()
        node = Running(supervisor, open_dir)
        with FileServer(CONTENT) as files:
            await supervisor.start(make_spec("r1-0", source=files.url()))
            await until(lambda: len(node.told) >= 2, "it ends")
            [held] = await supervisor.held()
            assert held.phase == "failed"
            assert f"nobody that engines run as does not get to {closed}" in (held.reason or "")
            assert "weights.dir" in (held.reason or "")
            assert files.asked == []
        await supervisor.close()

    run(test)


@as_root
def test_what_the_user_may_not_read_is_said_before_the_engine_starts(open_dir: Path) -> None:
    secret = open_dir / "model.gguf"
    secret.touch(mode=0o600)
    shard = open_dir / "work" / "shards" / "r1-0"
    shard.mkdir(parents=True)
    plan = LaunchPlan(engine=ProcessPlan(name="engine", argv=["/bin/sh", "--model", str(secret)], env={}))
    with pytest.raises(NotReady, match=r"the user nobody .* may not read .*model\.gguf; give it"):
        prepare(shard, plan, nobody())
    secret.chmod(0o644)
    prepare(shard, plan, nobody())
    plan = LaunchPlan(engine=ProcessPlan(name="engine", argv=[str(secret)], env={}))
    with pytest.raises(NotReady, match=r"may not run .*model\.gguf"):
        prepare(shard, plan, nobody())
    open_dir.chmod(0o700)
    with pytest.raises(NotReady, match=r"let others pass through the folders above supervisor\.work_dir"):
        prepare(shard, plan, nobody())


def test_files_of_a_plan_are_the_engine_s_alone_and_lie_in_its_folder_alone(tmp_path: Path) -> None:
    run_in = run_folder(tmp_path / "shards" / "r1-0")
    run_in.parent.mkdir(parents=True)

    def plan(path: Path) -> LaunchPlan:
        engine = ProcessPlan(name="engine", argv=["x"], env={})
        return LaunchPlan(engine=engine, files=[PlanFile(path=str(path), content="secret")])

    run_in.mkdir()
    (run_in / "key").symlink_to(tmp_path / "elsewhere")
    prepare(run_in.parent, plan(run_in / "key"), None)
    assert (run_in / "key").read_text() == "secret"
    assert (run_in / "key").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "elsewhere").exists()
    for outside in (tmp_path / "key", run_in / ".." / "key", run_in / "deeper" / "key"):
        with pytest.raises(NotReady, match="not in the shard's folder"):
            prepare(run_in.parent, plan(outside), None)


def test_a_node_whose_engine_user_is_wrong_starts_nothing_and_says_why(tmp_path: Path) -> None:
    async def test() -> None:
        supervisor = make_supervisor(make_config(tmp_path), refusal="supervisor.engine_user names x; make it")
        await supervisor.adopt()
        await supervisor.start(make_spec())
        [held] = await supervisor.held()
        assert (held.phase, held.reason) == ("failed", "supervisor.engine_user names x; make it")
        await supervisor.close()

    run(test)
