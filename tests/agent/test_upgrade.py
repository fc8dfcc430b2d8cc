"""An agent becomes another release: what it fetches, what it refuses, and when a new version has come to stay."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from llmgw.agent.conversation import TransportError
from llmgw.agent.upgrade import download as downloading
from llmgw.agent.upgrade.download import STALL_LIMIT_S, download
from llmgw.agent.upgrade.marker import Marker, read_marker, write_marker
from llmgw.agent.upgrade.program import run_program
from llmgw.agent.upgrade.trial import REFUSED_LIMIT_S, UNHEARD_LIMIT_S, Trial
from llmgw.agent.upgrade.upgrader import SETTLE, Upgrader
from llmgw.messages.agent import Refusal
from llmgw.messages.upgrade import ReadRelease, Upgrade, UpgradeTold
from llmgw.release import install
from llmgw.release.files import ReleaseError
from llmgw.release.signature import sign
from tests.agent.test_loop import LoopClock
from tests.release.made_up_release import MACHINE, folder_tarball

KEY = Ed25519PrivateKey.generate()
PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class FileServer:
    """A server that has one file. `troubles` come before answers, the oldest first."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.troubles: list[Exception | tuple[int, bytes]] = []
        self.offsets: list[int] = []

    async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        assert path == "/agent/v1/release"
        wish = msgspec.json.decode(body, type=ReadRelease)
        await asyncio.sleep(0.01)
        self.offsets.append(wish.offset)
        trouble = self.troubles.pop(0) if self.troubles else None
        if isinstance(trouble, Exception):
            raise trouble
        if trouble is not None:
            return trouble
        return 200, self.content[wish.offset : wish.offset + wish.size_bytes]


class Skipping:
    """A clock on which every wait is over at once."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def wish_for(content: bytes, **changes: Any) -> Upgrade:
    facts = {
        "seq": 1,
        "request_id": "u1",
        "name": f"llmgw-1.1.0-linux-{MACHINE}.tar.gz",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "signature": "c2lnbmF0dXJl",
    }
    return Upgrade(**(facts | changes))


def fetch(server: FileServer, upgrade: Upgrade, path: Path) -> list[int]:
    """Fetch it without waiting; how many bytes were told to be there."""
    told: list[int] = []

    asyncio.run(
        download(upgrade, path, transport=server, session=lambda: "s1", clock=Skipping(), tell=told.append)
    )
    return told


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloading, "PIECE_BYTES_MAX", 1000)


def test_a_download_that_is_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    content = os.urandom(3500)
    server, path = FileServer(content), tmp_path / "download" / "file"
    server.troubles = [TransportError("the connection broke")] * 3
    assert fetch(server, wish_for(content), path)[-1] == 3500
    assert path.read_bytes() == content
    assert server.offsets == [0, 0, 0, 0, 1000, 2000, 3000]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_download_of_an_agent_that_was_restarted_goes_on_where_it_was(tmp_path: Path) -> None:
    content = os.urandom(3500)
    server, path = FileServer(content), tmp_path / "download" / "file"
    server.troubles = [(200, content[:1000]), (404, b"gone")]
    with pytest.raises(ReleaseError, match="does not give out"):
        fetch(server, wish_for(content), path)
    (path.parent / "of-another-upgrade").write_bytes(b"x")
    server.offsets.clear()
    fetch(server, wish_for(content), path)
    assert server.offsets == [1000, 2000, 3000]
    assert path.read_bytes() == content
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_a_download_of_which_nothing_comes_is_given_up_and_what_came_is_kept(tmp_path: Path) -> None:
    content = os.urandom(3500)
    server, path = FileServer(content), tmp_path / "download" / "file"
    server.troubles = [(200, content[:1000]), *[TransportError("no route to host")] * 1000]
    with pytest.raises(
        ReleaseError, match=rf"no byte of .* for {STALL_LIMIT_S:.0f} s: no route to host; 1000 of"
    ):
        fetch(server, wish_for(content), path)
    assert path.read_bytes() == content[:1000]


@pytest.mark.parametrize("broken", [b"y" * 3500, b""])
def test_what_is_not_the_file_that_was_signed_is_thrown_away(tmp_path: Path, broken: bytes) -> None:
    content = os.urandom(3500)
    server, path = FileServer(broken), tmp_path / "download" / "file"
    with pytest.raises(ReleaseError, match=r"not the file that was signed|0 bytes of"):
        fetch(server, wish_for(content), path)
    assert not path.exists() or path.read_bytes() == b""


def test_a_download_for_which_there_is_no_room_does_not_keep_the_disk_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = downloading._append

    def full(path: Path, offset: int, piece: bytes) -> None:
        if offset:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(path, offset, piece)

    monkeypatch.setattr(downloading, "_append", full)
    content, path = os.urandom(3500), tmp_path / "download" / "file"
    with pytest.raises(ReleaseError, match="is full; make room there"):
        fetch(FileServer(content), wish_for(content), path)
    assert not path.exists()


def test_what_a_power_cut_has_left_of_a_download_is_fetched_anew(tmp_path: Path) -> None:
    content = os.urandom(3500)
    server, path = FileServer(content), tmp_path / "download" / "file"
    path.parent.mkdir()
    path.write_bytes(b"\0" * 2000)
    fetch(server, wish_for(content), path)
    assert path.read_bytes() == content
    assert server.offsets == [2000, 3000, 0, 1000, 2000, 3000]


class Node:
    """A machine below a folder, on which a program was installed that says version 1.0.0."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self.folder = folder
        self.key = folder / "release.pub"
        self.key.write_bytes(PEM)
        first = folder_tarball(folder, "1.0.0")
        words = ["sh", "-s", "--", str(first), first.name, hashlib.sha256(first.read_bytes()).hexdigest()]
        subprocess.run(
            [*words, str(self.root)], input=install.script(), text=True, check=True, capture_output=True
        )
        self.restarts = 0
        self.told: list[UpgradeTold] = []

    @property
    def program(self) -> Path:
        return self.root / "usr/local/bin/llmgw"

    def version(self) -> str:
        return subprocess.run(
            [self.program, "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()

    def release(self, version: str = "1.1.0", **facts: Any) -> tuple[Upgrade, bytes]:
        path = folder_tarball(self.folder, version, **facts)
        content = path.read_bytes()
        return wish_for(content, name=path.name, signature=sign(KEY, path)), content

    def upgrade(self, upgrade: Upgrade, content: bytes, **changes: Any) -> UpgradeTold:
        """What the agent says last."""

        def restart() -> None:
            self.restarts += 1

        async def tell(told: UpgradeTold) -> None:
            self.told.append(told)

        facts: dict[str, Any] = {
            "folder": self.folder / "state",
            "root": str(self.root),
            "release_key": self.key,
            "oldest": None,
            "version": "1.0.0",
            "check": ["agent", "--check"],
            "environ": os.environ,
            "transport": FileServer(content),
            "session": lambda: "s1",
            "clock": LoopClock(),
            "restart": restart,
        }
        asyncio.run(Upgrader(**(facts | changes)).carry_out(upgrade, tell))
        return self.told[-1]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_an_agent_switches_its_program_and_leaves_the_way_back(node: Node) -> None:
    before = os.readlink(node.program)
    assert node.upgrade(*node.release()).stage == "switching"
    assert list(dict.fromkeys(told.stage for told in node.told)) == [
        "downloading",
        "installing",
        "checking",
        "switching",
    ]
    assert node.restarts == 1
    assert node.version() == "llmgw 1.1.0"
    marker = read_marker(node.folder / "state")
    assert marker is not None
    assert (marker.old, marker.outcome, marker.upgrade_id) == (before, "trial", "u1")
    assert (node.folder / "state" / SETTLE).exists()
    assert not list((node.folder / "state" / "download").iterdir())


def test_an_agent_that_is_this_release_already_says_so(node: Node) -> None:
    upgrade, content = node.release()
    node.upgrade(upgrade, content)
    assert node.upgrade(upgrade, content, version="1.1.0").stage == "already"
    assert node.restarts == 1


def test_an_agent_whose_program_was_replaced_beneath_it_does_not_say_that_it_is_the_new_one(node: Node) -> None:
    upgrade, content = node.release()
    node.upgrade(upgrade, content)
    told = node.upgrade(upgrade, content, version="1.0.0")
    assert told.stage == "refused"
    assert "is llmgw 1.1.0 already, and this agent still llmgw 1.0.0" in told.sentence
    assert node.restarts == 1


def test_what_is_left_for_the_way_back_is_on_the_disk_before_the_program_is_switched(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, str]] = []
    fsync = os.fsync

    def seen(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        synced.append((name, os.readlink(node.program).split("/")[-3][:5]))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    node.upgrade(*node.release())
    assert [name for name, _ in synced] == [f"{SETTLE}.new", "state", "marker.new", "state"]
    assert {version for _, version in synced} == {"1.0.0"}
    assert (node.folder / "state" / SETTLE).stat().st_mode & 0o777 == 0o600


def test_an_agent_that_nobody_would_start_again_refuses(node: Node) -> None:
    told = node.upgrade(*node.release(), root=None)
    assert told.stage == "refused"
    assert "not started by its unit llmgw-agent.service" in told.sentence


def test_a_program_that_is_no_symlink_is_not_replaced(node: Node) -> None:
    node.program.unlink()
    node.program.write_text("#!/bin/sh\n")
    told = node.upgrade(*node.release())
    assert "is no symlink to a version" in told.sentence
    assert node.program.read_text() == "#!/bin/sh\n"


def test_what_is_signed_for_another_file_is_refused_before_a_byte_of_it_is_fetched(node: Node) -> None:
    upgrade, content = node.release()
    server = FileServer(content)
    other = msgspec.structs.replace(upgrade, sha256="cd" * 32)
    told = node.upgrade(other, content, transport=server)
    assert told.stage == "refused"
    assert "was not made with the release key" in told.sentence
    assert server.offsets == []


def test_an_old_release_that_is_signed_and_asked_for_is_not_taken_below_the_oldest_one(node: Node) -> None:
    upgrade, content = node.release("0.9.0")
    server, wish = FileServer(content), msgspec.structs.replace(upgrade, allow_downgrade=True)
    told = node.upgrade(wish, content, transport=server, oldest="0.9.1")
    assert told.stage == "refused"
    assert "older than oldest_release in this node's agent.yaml (0.9.1)" in told.sentence
    assert server.offsets == []
    assert node.upgrade(wish, content, transport=server, oldest="0.9.0").stage == "switching"


def test_a_release_key_that_is_none_is_a_sentence(node: Node) -> None:
    node.key.write_text("-----BEGIN NOTHING-----")
    assert "holds no public key of Ed25519" in node.upgrade(*node.release()).sentence


def test_a_file_for_another_machine_is_refused_by_the_installer_and_nothing_is_switched(node: Node) -> None:
    machine = "aarch64" if MACHINE == "x86_64" else "x86_64"
    told = node.upgrade(*node.release(machine=machine))
    assert f"is for {machine} and this machine is {MACHINE}" in told.sentence
    assert node.version() == "llmgw 1.0.0"
    assert read_marker(node.folder / "state") is None


def test_a_configuration_that_the_new_program_does_not_take_is_told_in_its_own_words(node: Node) -> None:
    program = (
        '#!/bin/sh\n[ "$1" != agent ] || {{ echo "error: no such key" >&2; exit 1; }}\necho llmgw {version}\n'
    )
    told = node.upgrade(*node.release(program=program))
    assert told.sentence.endswith("does not take this node's configuration: no such key")
    assert node.version() == "llmgw 1.0.0"
    assert node.restarts == 0


def switched(node: Node) -> Path:
    """The folder of the marker of an upgrade that was switched to."""
    node.upgrade(*node.release())
    return node.folder / "state"


class Seconds:
    now = 0.0


def trial(
    folder: Path, restart: Callable[[], None] = lambda: None, *, waiting: list[Callable[[], None]] | None = None
) -> Trial:
    """One that stays; with `waiting`, what it would do later is put there instead."""

    def later(_seconds: float, what: Callable[[], None]) -> None:
        if waiting is None:
            what()
        else:
            waiting.append(what)

    return Trial(folder, now_s=lambda: Seconds.now, later=later, restart=restart)


def test_a_version_has_settled_when_a_server_takes_its_registration(node: Node) -> None:
    folder = switched(node)
    new = trial(folder)
    last = new.last()
    assert last is not None
    assert last.outcome == "trial"
    new.registered()
    marker = read_marker(folder)
    assert marker is not None
    assert marker.outcome == "settled"
    again = trial(folder).last()
    assert again is not None
    assert again.outcome == "settled"


def test_a_version_that_registers_has_not_settled_before_it_has_stayed(node: Node) -> None:
    folder, waiting = switched(node), list[Callable[[], None]]()
    new = trial(folder, waiting=waiting)
    new.registered()
    new.registered()
    marker = read_marker(folder)
    assert marker is not None
    assert (marker.outcome, len(waiting)) == ("trial", 1)
    waiting[0]()
    assert read_marker(folder) == replace(marker, outcome="settled")


def test_a_version_that_is_replaced_before_it_has_settled_leaves_the_next_ones_marker(node: Node) -> None:
    folder, waiting = switched(node), list[Callable[[], None]]()
    trial(folder, waiting=waiting).registered()
    marker = read_marker(folder)
    assert marker is not None
    write_marker(folder, replace(marker, upgrade_id="u2"))
    waiting[0]()
    assert read_marker(folder) == replace(marker, upgrade_id="u2")


def test_a_version_that_the_server_refuses_for_a_minute_goes_back(node: Node) -> None:
    folder, restarts = switched(node), list[int]()
    new = trial(folder, lambda: restarts.append(1))
    Seconds.now = 100.0
    new.refused("this server is 1.9")
    Seconds.now += REFUSED_LIMIT_S / 2
    new.refused("this server is 1.9")
    assert node.version() == "llmgw 1.1.0"
    Seconds.now += REFUSED_LIMIT_S
    new.refused("this server is 1.9")
    assert restarts == [1]
    assert node.version() == "llmgw 1.0.0"
    last = trial(folder).last()
    assert last is not None
    assert (last.outcome, last.reason) == ("back", "the server refused llmgw 1.1.0: this server is 1.9")


def test_a_server_that_was_away_meanwhile_has_not_refused_for_a_minute(node: Node) -> None:
    new = trial(switched(node))
    for Seconds.now in (0.0, 100.0, 200.0):
        new.refused("starting")
        new.unheard("the connection was refused")
    assert node.version() == "llmgw 1.1.0"


def test_a_version_that_gets_through_to_no_server_goes_back(node: Node) -> None:
    folder, restarts = switched(node), list[int]()
    new = trial(folder, lambda: restarts.append(1))
    for Seconds.now in (0.0, UNHEARD_LIMIT_S - 1.0):
        new.unheard("no route to host")
    assert node.version() == "llmgw 1.1.0"
    Seconds.now += 1.0
    new.unheard("no route to host")
    assert restarts == [1]
    assert node.version() == "llmgw 1.0.0"
    last = trial(folder).last()
    assert last is not None
    assert last.reason == "30 min long no server was reached by llmgw 1.1.0: no route to host"


def test_a_version_does_not_go_back_to_one_that_is_gone(node: Node) -> None:
    folder, restarts = switched(node), list[int]()
    marker = read_marker(folder)
    assert marker is not None
    os.unlink(marker.old)
    new = trial(folder, lambda: restarts.append(1))
    for Seconds.now in (0.0, 100.0):
        new.refused("no")
    assert restarts == []
    assert node.version() == "llmgw 1.1.0"


def test_a_version_that_has_settled_stays_whatever_the_server_says(node: Node) -> None:
    new = trial(switched(node))
    new.registered()
    for Seconds.now in (0.0, 1000.0, 4000.0):
        new.refused("no")
    for Seconds.now in (5000.0, 9000.0):
        new.unheard("no route to host")
    assert node.version() == "llmgw 1.1.0"


def test_a_switch_that_a_power_cut_has_prevented_did_not_succeed(node: Node) -> None:
    folder = switched(node)
    marker = read_marker(folder)
    assert marker is not None
    node.program.unlink()
    node.program.symlink_to(marker.old)
    last = trial(folder).last()
    assert last is not None
    assert last.outcome == "back"
    assert "interrupted" in last.reason


def test_a_program_that_was_put_there_by_hand_is_no_upgrade(node: Node) -> None:
    folder = switched(node)
    trial(folder).registered()
    node.program.unlink()
    node.program.symlink_to("/elsewhere")
    assert trial(folder).last() is None


@pytest.mark.parametrize("text", ["", "outcome=trial\n", "\xff\x00", "a" * 10_000])
def test_a_marker_that_cannot_be_read_is_no_upgrade(tmp_path: Path, text: str) -> None:
    (tmp_path / "marker").write_text(text, encoding="latin-1")
    assert trial(tmp_path).last() is None


def test_a_marker_keeps_a_reason_of_many_lines_on_one(tmp_path: Path) -> None:
    marker = Marker(
        upgrade_id="u1",
        sha256="ab" * 32,
        version="1",
        program="/p",
        old="/o",
        new="/n",
        reason="one\ntries=9\ntwo",
    )
    write_marker(tmp_path, marker)
    read = read_marker(tmp_path)
    assert read is not None
    assert (read.reason, read.tries) == ("one tries=9 two", 0)


def test_a_program_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid}; wait"
    with pytest.raises(ReleaseError, match="did not end within 1 s"):
        asyncio.run(run_program(["/bin/sh", "-c", script], os.environ, 1.0))
    stat = Path(f"/proc/{pid.read_text().strip()}/stat")

    def ended() -> bool:
        try:
            return stat.read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    # It was sent the signal, and ends when it next runs.
    deadline = time.monotonic() + 10
    while not ended():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_id_that_no_server_would_take_in_a_registration_is_taken_from_none() -> None:
    wish = msgspec.json.encode(wish_for(b"x", request_id="u" * 129))
    with pytest.raises(msgspec.ValidationError, match="request_id"):
        msgspec.json.decode(wish, type=Upgrade)


def test_a_refusal_of_the_server_is_told_in_its_words(tmp_path: Path) -> None:
    content = os.urandom(10)
    server = FileServer(content)
    body = msgspec.json.encode(Refusal(code="no_release", message="node01 is not asked"))
    server.troubles = [(404, body)]
    with pytest.raises(ReleaseError, match="node01 is not asked"):
        fetch(server, wish_for(content), tmp_path / "download" / "file")
