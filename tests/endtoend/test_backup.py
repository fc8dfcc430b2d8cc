"""`llmgw server backup` and `restore` through real processes: under load, killed, damaged, older, adopted."""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.pki.authority import Authority
from llmgw.server.backup import make
from llmgw.server.backup.restore import Destination, restoring
from llmgw.server.store import sqlite_file
from tests.endtoend.conftest import RunningFleet, edited, llmgw, until
from tests.endtoend.servers import Server, server

pytestmark = pytest.mark.scenario

PASSPHRASE = "correct horse battery"
FILE_MIB = 96


def run(folder: Path, *arguments: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """`llmgw server …` with the configuration of that folder."""
    done = llmgw("server", *arguments, "--config", str(folder / "server.yaml"), env={"NO_COLOR": "1"})
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == (0 if ok else 1), done.stderr + done.stdout
    return done


def back_up(folder: Path, file: Path, *more: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run(folder, "backup", str(file), *more, "-o", "json").stdout)
    return content


def restore(folder: Path, file: Path, *more: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run(folder, "restore", str(file), "--yes", *more, "-o", "json").stdout)
    return content


def post(running: Server, path: str, body: dict[str, Any]) -> None:
    token = json.loads((running.state / "admin.json").read_text())["token"]
    httpx.post(
        f"{running.admin}/api/v1/{path}",
        json=body,
        headers={"authorization": f"Bearer {token}"},
        trust_env=False,
        timeout=150,
    ).raise_for_status()


def history(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        count: int = connection.execute("SELECT count(*) FROM history").fetchone()[0]
        return count


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a server that has run, and runs no more."""
    folder = tmp_path_factory.mktemp("stopped")
    with server(folder) as running:
        post(running, "keys", {"name": "alice"})
    return folder


@pytest.fixture
def idle(stopped: Path, tmp_path: Path) -> Path:
    """A copy of that folder, with a backup `b.tar` in it."""
    folder = tmp_path / "idle"
    shutil.copytree(stopped, folder)
    with edited(folder / "server.yaml") as config:
        config["state"] = str(folder / "state")
    back_up(folder, folder / "b.tar")
    return folder


def test_a_backup_made_while_changes_go_on_holds_each_that_was_made_before_it(tmp_path: Path) -> None:
    with server(tmp_path / "a") as running:
        made: list[str] = []
        over = threading.Event()

        def change() -> None:
            while not over.is_set():
                name = f"key-{len(made)}"
                post(running, "keys", {"name": name})
                made.append(name)

        worker = threading.Thread(target=change)
        worker.start()
        try:
            until(lambda: len(made) > 20)
            before = list(made)
            said = back_up(running.folder, tmp_path / "b.tar")
            until(lambda: len(made) > len(before) + 5)
        finally:
            over.set()
            worker.join()
        assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
        assert said["catalog_revision"] == 1
        refused = run(running.folder, "restore", str(tmp_path / "b.tar"), "--yes", ok=False)
        assert "another llmgw server (process" in refused.stderr
        assert "stop that one first" in refused.stderr
        running.stop()
        done = restore(running.folder, tmp_path / "b.tar")
        assert f"key {made[-1]}" in done["lost"]
        running.start_again()
        running.wait_serving()
        names = {key["name"] for key in running.get("keys")}
        assert set(before) <= names
        assert made[-1] not in names
        kept = Path(done["replaced_kept_in"])
        assert kept.parent == running.state
        assert history(kept / "llmgw.db") >= len(made)


def test_a_backup_that_is_killed_leaves_no_file_behind(idle: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(idle / "state" / "llmgw.db")) as connection:
        row = "INSERT INTO history (at, kind, subject, event, reason, nodes) VALUES (1, 'a', 'b', 'c', ?, '[]')"
        connection.executemany(row, [("x" * 2**20,)] * FILE_MIB)
        connection.commit()
    folder = tmp_path / "backups"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "llmgw", "server", "backup", "big.tar", "-c", str(idle / "server.yaml")],
        cwd=folder,
    )

    def written() -> int:
        """Bytes in the files without a name that the process has open in that folder."""
        size = 0
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                if os.readlink(descriptor).startswith(str(folder)) and descriptor.is_file():
                    size += descriptor.stat().st_size
            except OSError:
                continue
        return size

    deadline = time.monotonic() + 30
    while written() < 2**20 * 8 and time.monotonic() < deadline:
        assert process.poll() is None, "it was done too soon to be killed: make it longer"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(folder.iterdir()) == []
    assert run(idle, "backup", str(folder / "big.tar")).returncode == 0
    assert (folder / "big.tar").stat().st_size > FILE_MIB * 2**20


def test_a_disk_without_room_makes_no_backup_and_is_named(idle: Path, tmp_path: Path) -> None:
    command = f"ulimit -f 64; exec {sys.executable} -m llmgw server backup {tmp_path}/c.tar -c {idle}/server.yaml"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1
    assert "there is no space left for" in done.stderr or "cannot be read or written" in done.stderr, done.stderr
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "c.tar").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/c.tar", "there is no folder"),
        ("b.tar/c.tar", "is no folder; name another file"),
        ("b.tar", "is there already, and a backup replaces nothing"),
        ("x" * 300, "cannot be made (File name too long); name another file"),
    ],
)
def test_a_backup_that_cannot_be_made_where_it_is_asked_for_names_that_place(
    idle: Path, name: str, words: str
) -> None:
    done = run(idle, "backup", str(idle / name), ok=False)
    assert words in done.stderr
    assert str(idle) in done.stderr
    assert "set state" not in done.stderr, "the state has nothing to do with it"


@pytest.mark.parametrize("command", ["backup", "restore"])
@pytest.mark.parametrize("option", ["--passphrase-file", "--pki"])
def test_what_is_said_of_an_authority_that_is_not_taken_along_is_refused(
    idle: Path, command: str, option: str
) -> None:
    done = llmgw("server", command, str(idle / "c.tar"), option, str(idle), "-c", str(idle / "server.yaml"))
    assert done.returncode == 2
    assert f"{option} is about the authority, which is left out without --authority" in done.stderr
    assert not (idle / "c.tar").exists()


def test_a_passphrase_that_would_be_cut_off_is_refused(idle: Path, secret: Path, tmp_path: Path) -> None:
    secret.write_text("x" * 4097)
    options = ("--authority", "--pki", str(tmp_path), "--passphrase-file", str(secret))
    assert "is longer than 4096 bytes" in run(idle, "backup", str(idle / "c.tar"), *options, ok=False).stderr


def changed(file: Path, member: str, at: int) -> None:
    """Another byte in a member of the tar."""
    with tarfile.open(file) as tar:
        offset = tar.getmember(member).offset_data + at
    with file.open("r+b") as out:
        out.seek(offset)
        byte = out.read(1)
        out.seek(offset)
        out.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: changed(file, "llmgw.db", 50_000), "llmgw.db in it is not what was written"),
        (lambda file: os.truncate(file, file.stat().st_size // 2), "is cut off"),
        (lambda file: os.truncate(file, 0), "is cut off, or no backup"),
        (lambda file: changed(file, "manifest.json", 3), "is damaged: its manifest cannot be read"),
        (lambda file: file.write_text("models: []\n" * 9000), "no backup of `llmgw server backup`"),
        (lambda file: _with(file, "../../outside", b"x"), "holds what no backup does"),
        (lambda file: _said(file, format=2, llmgw="99.0"), "was made by a newer llmgw (99.0)"),
        (lambda file: file.unlink(), "cannot be read (No such file or directory)"),
        (lambda file: _said(file, made_at=1e300), "is damaged: its manifest cannot be read"),
        (lambda file: _said(file, made_at=-1e18), "is damaged: its manifest cannot be read"),
        (lambda file: _sparse(file, "0,a"), "is cut off, or no backup"),
        (lambda file: _sparse(file, f"0,512,{2**50},1"), "holds what no backup does"),
    ],
)
def test_a_backup_that_is_not_whole_changes_nothing(idle: Path, damage: Any, words: str) -> None:
    damage(idle / "b.tar")
    before = {path.name: path.read_bytes() for path in (idle / "state").iterdir()}
    done = run(idle, "restore", str(idle / "b.tar"), "--yes", ok=False)
    assert words in done.stderr
    assert {path.name: path.read_bytes() for path in (idle / "state").iterdir()} == {
        **before,
        "lock": (idle / "state" / "lock").read_bytes(),
    }


def _with(file: Path, name: str, data: bytes) -> None:
    with tarfile.open(file, "a") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))


def _said(file: Path, **changes: Any) -> None:
    with tarfile.open(file) as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    found["manifest.json"] = json.dumps({**json.loads(found["manifest.json"]), **changes}).encode()
    file.unlink()
    with tarfile.open(file, "w"):
        pass
    for name, data in found.items():
        _with(file, name, data)


def _sparse(file: Path, regions: str) -> None:
    """The database as a sparse member that says to be 1 PiB large."""
    with tarfile.open(file) as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in found.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            if name == "llmgw.db":
                entry.pax_headers = {"GNU.sparse.map": regions, "GNU.sparse.size": str(2**50)}
            tar.addfile(entry, io.BytesIO(data))


def test_a_state_of_a_newer_schema_is_refused(idle: Path) -> None:
    with closing(sqlite3.connect(idle / "state" / "llmgw.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    back_up(idle, idle / "newer.tar")
    done = run(idle, "restore", str(idle / "newer.tar"), "--yes", ok=False)
    assert "newer.tar was written by a newer llmgw" in done.stderr
    assert "schema 9999" in done.stderr
    assert "install that version first" in done.stderr
    assert not list((idle / "state").glob("restore-partial*"))


def test_the_copy_that_is_made_before_a_migration_can_be_put_back(idle: Path) -> None:
    copy = sqlite_file.back_up(idle / "state" / "llmgw.db", "0001", 1.0)
    with closing(sqlite3.connect(idle / "state" / "llmgw.db")) as connection:
        connection.execute("DELETE FROM history")
        connection.commit()
    restore(idle, copy)
    assert history(idle / "state" / "llmgw.db") > 0


def test_a_damaged_database_is_kept_as_it_is_and_replaced(idle: Path) -> None:
    database = idle / "state" / "llmgw.db"
    damaged = b"SQLite format 3\x00" + b"\xff" * 9000
    database.write_bytes(damaged)
    refused = run(idle, "backup", str(idle / "another.tar"), ok=False)
    assert "is damaged" in refused.stderr or "is not an SQLite database" in refused.stderr
    done = run(idle, "restore", str(idle / "b.tar"), "--yes", "-o", "json")
    assert "what is there now cannot be read" in done.stderr
    kept = Path(json.loads(done.stdout)["replaced_kept_in"])
    assert (kept / "llmgw.db").read_bytes() == damaged
    assert history(database) > 0


def test_what_was_revoked_since_the_backup_stays_revoked(tmp_path: Path) -> None:
    with server(tmp_path / "a") as running:
        running.ctl("keys", "create", "alice")
        running.ctl("token", "create", "bob")
        back_up(running.folder, tmp_path / "b.tar")
        running.ctl("keys", "revoke", "alice")
        running.ctl("token", "revoke", "bob")
        running.stop()
        assert restore(running.folder, tmp_path / "b.tar")["kept_revoked"] == ["key alice", "token bob"]
        running.start_again()
        running.wait_serving()
        assert running.get("keys") == []
        assert "bob" not in [token["name"] for token in running.get("tokens")]
        # Nor does an older state forget who asked for what.
        put_back, *asked = running.get("audit")
        assert (put_back["by"], put_back["route"], put_back["status"]) == ("restore", "llmgw server restore", 200)
        assert "was put back" in put_back["message"]
        assert [(entry["method"], entry["subject"]) for entry in asked] == [
            ("DELETE", "bob"), ("DELETE", "alice"), ("POST", "bob"), ("POST", "alice"),
        ]  # fmt: skip


def test_a_gateway_that_has_had_a_key_is_not_open_because_the_backup_is_of_before_it(tmp_path: Path) -> None:
    with server(tmp_path / "a") as running:
        back_up(running.folder, tmp_path / "b.tar")
        running.ctl("keys", "create", "alice")
        until(lambda: httpx.get(f"{running.api}/v1/models", trust_env=False).status_code == 401)
        running.stop()
        assert restore(running.folder, tmp_path / "b.tar")["lost"] == ["key alice"]
        running.start_again()
        running.wait_serving()
        assert running.get("server")["api_keys_required"]
        assert httpx.get(f"{running.api}/v1/models", trust_env=False).status_code == 401


def test_what_a_killed_restore_left_is_no_part_of_the_next(idle: Path) -> None:
    state = idle / "state"
    with closing(sqlite3.connect(state / "llmgw.db")) as connection:
        # A log as a kill leaves it: of a database that looks like the one to come, with something more.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("DELETE FROM history")
        connection.commit()
        for suffix in ("", "-wal"):
            shutil.copy(state / f"llmgw.db{suffix}", state / f"restore-partial.db{suffix}")
    restore(idle, idle / "b.tar")
    assert history(state / "llmgw.db") > 0
    assert not list(state.glob("restore-partial*"))


def test_a_restore_asks_first_where_it_can(idle: Path) -> None:
    done = llmgw("server", "restore", str(idle / "b.tar"), "--config", str(idle / "server.yaml"))
    assert done.returncode == 2
    assert "restoring needs --yes" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_what_root_puts_back_belongs_to_whom_the_state_folder_belongs(idle: Path) -> None:
    for path in (idle / "state", *(idle / "state").iterdir()):
        os.chown(path, 4711, 4712)
    (idle / "state" / "lock").unlink()
    restore(idle, idle / "b.tar")
    assert {path.stat().st_uid for path in (idle / "state").rglob("*")} == {4711}
    assert {path.stat().st_gid for path in (idle / "state").rglob("*")} == {4712}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "passphrase"
    path.write_text(f"{PASSPHRASE}\n")
    path.chmod(0o600)
    return path


def test_the_authority_goes_along_under_a_passphrase_and_forgets_nothing_that_was_revoked_since(
    idle: Path, secret: Path, tmp_path: Path
) -> None:
    pki = tmp_path / "pki"
    authority = Authority.create(pki, permit_ip=["127.0.0.0/8"], now=time.time())
    authority.issue_client("node01", "127.0.0.1", time.time())
    file = idle / "whole.tar"
    options = ("--authority", "--pki", str(pki), "--passphrase-file", str(secret))
    assert back_up(idle, file, *options)["authority"]
    assert b"PRIVATE KEY" not in file.read_bytes()
    assert PASSPHRASE.encode() not in file.read_bytes()

    authority.revoke("node01", time.time())
    authority.issue_client("node02", "127.0.0.2", time.time())
    key = (pki / "ca-key.pem").read_bytes()
    (pki / "ca-key.pem").write_text("lost")
    pki.chmod(0o710)
    kept = Path(restore(idle, file, *options)["authority_kept_in"])
    assert (kept / "ca-key.pem").read_text() == "lost"
    assert (pki / "ca-key.pem").read_bytes() == key
    assert (pki / "ca-key.pem").stat().st_mode & 0o777 == 0o600
    assert pki.stat().st_mode & 0o777 == 0o710, "the server passes through it to the list"
    records = {record.name: record.revoked for record in Authority.open(pki).list(time.time())}
    assert records["node01"], "and not let in again by an older list"
    assert records["node02"] is False

    shutil.rmtree(pki)
    assert restore(idle, file, *options)["authority_kept_in"] is None
    Authority.open(pki).issue_client("node03", "127.0.0.3", time.time())

    shutil.rmtree(pki)
    Authority.create(pki, permit_ip=["127.0.0.0/8"], now=time.time())
    before = (idle / "state" / "llmgw.db").read_bytes()
    other = run(idle, "restore", str(file), "--yes", *options, ok=False)
    assert "holds another authority than the backup" in other.stderr
    assert (idle / "state" / "llmgw.db").read_bytes() == before


# Each call that a restore changes the file system with.
_CALLS = ("mkdir", "rename", "replace", "link", "unlink", "chmod")


def _put_back(folder: Path, now: float, killed_at: int = 0) -> None:
    """Restore `folder`/b.tar; this process is killed in place of the call of that number."""
    calls = itertools.count(1)

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def then(*arguments: Any, **options: Any) -> Any:
            if next(calls) == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return then

    to = Destination(folder / "state", None, folder / "pki")
    with restoring(folder / "b.tar", to, passphrase=PASSPHRASE) as ready:
        if killed_at:
            for name in _CALLS:
                setattr(os, name, counted(getattr(os, name)))
        ready.carry_out(now)


def test_a_restore_killed_at_any_step_is_completed_by_the_next_and_lets_nobody_in(
    tmp_path: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What guards the passphrase costs most of a second each time, and is not what this is about.
    monkeypatch.setattr("llmgw.server.backup.sealed._LOG2_N", 4)
    before = tmp_path / "before"
    shutil.copytree(stopped / "state", before / "state")
    authority = Authority.create(before / "pki", permit_ip=["127.0.0.0/8"], now=time.time())
    authority.issue_client("node01", "127.0.0.1", time.time())
    make.back_up(
        before / "state",
        before / "b.tar",
        now=time.time(),
        authority=before / "pki",
        passphrase=PASSPHRASE,
    )
    authority.revoke("node01", time.time())
    authority.issue_client("node02", "127.0.0.2", time.time())
    step, killed = 1, True
    while killed:
        folder = tmp_path / str(step)
        shutil.copytree(before, folder)
        process = multiprocessing.get_context("fork").Process(target=_put_back, args=(folder, time.time(), step))
        process.start()
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        assert killed or (step > 10 and process.exitcode == 0)
        _put_back(folder, time.time() + 10)
        records = {record.name: record.revoked for record in Authority.open(folder / "pki").list(time.time())}
        assert (records["node01"], records["node02"]) == (True, False), f"killed at step {step}"
        assert not [path for path in folder.iterdir() if path.name.startswith(".")], "it would hold keys"
        assert not list((folder / "state").glob("restore-partial*"))
        assert history(folder / "state" / "llmgw.db") > 0
        shutil.rmtree(folder)
        step += 1


def test_a_wrong_passphrase_changes_nothing_and_a_short_one_is_refused(
    idle: Path, secret: Path, tmp_path: Path
) -> None:
    pki = tmp_path / "pki"
    Authority.create(pki, permit_ip=["127.0.0.0/8"], now=time.time())
    options = ("--authority", "--pki", str(pki), "--passphrase-file", str(secret))
    back_up(idle, idle / "whole.tar", *options)
    secret.write_text("wrong horse battery\n")
    before = (idle / "state" / "llmgw.db").read_bytes()
    wrong = run(idle, "restore", str(idle / "whole.tar"), "--yes", *options, ok=False)
    assert "the passphrase is another one, or the file was changed" in wrong.stderr
    assert (idle / "state" / "llmgw.db").read_bytes() == before
    lacking = run(idle, "restore", str(idle / "b.tar"), "--yes", *options, ok=False)
    assert "holds no authority" in lacking.stderr
    secret.write_text("short\n")
    short = run(idle, "backup", str(idle / "short.tar"), *options, ok=False)
    assert "take at least 10" in short.stderr
    assert not (idle / "short.tar").exists()
    nobody = llmgw("server", "backup", str(idle / "c.tar"), "--authority", "-c", str(idle / "server.yaml"))
    assert (nobody.returncode, "needs --passphrase-file FILE" in nobody.stderr) == (2, True)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[RunningFleet]:
    running = RunningFleet(tmp_path / "demo")
    try:
        running.wait_ready()
        yield running
    finally:
        running.close()


def test_a_server_on_a_restored_older_state_adopts_what_runs(fleet: RunningFleet, tmp_path: Path) -> None:
    folder = fleet.demo.folder
    back_up(folder, tmp_path / "b.tar")
    old = {replica["replica_id"] for replica in fleet.ready("demo/small")}
    fleet.ctl("restart", min(old))
    until(lambda: min(old) not in {r["replica_id"] for r in fleet.get("replicas")}, 30, fleet.story)
    fleet.wait_ready()
    running = {replica["replica_id"] for replica in fleet.ready()}
    engines = fleet.demo.engines()
    fleet.demo.kill_server()
    done = restore(folder, tmp_path / "b.tar")
    assert done["stops"] == []
    fleet.demo.start_server()
    fleet.run(fleet.demo.wait_for_admin())
    until(lambda: not fleet.get("server")["settling"], 30)
    fleet.wait_ready()
    assert {replica["replica_id"] for replica in fleet.ready()} == running
    assert fleet.demo.engines() == engines, "the processes themselves"
    assert fleet.chat("demo/small").status_code == 200


def test_a_node_that_was_removed_since_the_backup_is_not_waited_for(fleet: RunningFleet, tmp_path: Path) -> None:
    folder = fleet.demo.folder
    back_up(folder, tmp_path / "b.tar")
    fleet.ctl("node", "remove", "node04", "--yes", "--force", "--pki", str(tmp_path), timeout_s=60)
    fleet.demo.kill_server()
    assert restore(folder, tmp_path / "b.tar")["kept_revoked"] == ["node node04"]
    fleet.demo.start_server()
    fleet.run(fleet.demo.wait_for_admin())
    assert "node04" not in {node["node_id"] for node in fleet.get("nodes")}
    until(lambda: "node04 was removed on" in fleet.demo.last_words("node04", 20), 30)
    assert "node04" not in {node["node_id"] for node in fleet.get("nodes")}
