"""Upgrades through the admin API: what is refused before any agent is asked, and what lies on the disk
meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from llmgw.fleet.observe import Enrolment
from llmgw.messages.agent import Inventory, Register, Report
from llmgw.messages.upgrade import UPGRADE_FEATURE, LastUpgrade, ReadRelease, Upgrade, UpgradeTold
from llmgw.release.files import ReleaseError
from llmgw.release.signature import sign
from llmgw.server.hub_error import HubError
from llmgw.server.upgrades import releases as keeping
from llmgw.server.upgrades.releases import Releases
from llmgw.server.upgrades.roll import STEADY_S
from llmgw.server.upgrades.upgrades import Upgrades
from tests.server.test_catalog_owner import NOW, Plane, Test

KEY = Ed25519PrivateKey.generate()
NAME = "llmgw-0.1.5-py3-none-any.whl"
Run = Callable[[Test], None]


def a_file(folder: Path, name: str = NAME, key: Ed25519PrivateKey = KEY) -> tuple[bytes, dict[str, Any]]:
    """A release's content, and the body that starts an upgrade to it."""
    path = folder / name
    content = os.urandom(100_000)
    path.write_bytes(content)
    return content, {"name": name, "sha256": hashlib.sha256(content).hexdigest(), "signature": sign(key, path)}


def join(
    plane: Plane, node: str, *, version: str = "0.1.0", last: LastUpgrade | None = None, counter: int = 1
) -> str:
    """A node registers; its session."""
    message = Register(
        node_id=node,
        boot_id="b",
        instance=f"i{counter}",
        instance_started_at=float(counter),
        counter=counter,
        version=version,
        features=[UPGRADE_FEATURE],
        inventory=Inventory(),
        last_upgrade=last,
    )
    return plane.hub.register(message, Enrolment("10.0.0.9", NOW + 3600), "0.1.0").session


async def started(plane: Plane, folder: Path, *nodes: str, **more: Any) -> tuple[bytes, dict[str, Any]]:
    """An upgrade that has been started: the file's content, and the answer."""
    content, wish = a_file(folder)
    assert (await plane.put(f"releases/{wish['sha256']}", content)).status_code == 200
    answer = await plane.post("upgrades", **wish, nodes=list(nodes), **more)
    assert answer.status_code == 201, answer.text
    return content, answer.json()


def test_a_file_is_kept_for_its_owner_alone_and_given_to_the_node_whose_turn_it_is(
    with_plane: Run, tmp_path: Path
) -> None:
    async def body(plane: Plane) -> None:
        sessions = {node: join(plane, node) for node in ("x1", "x2")}
        content, view = await started(plane, tmp_path, "x1", "x2")
        kept = tmp_path / "state" / "releases" / view["sha256"]
        assert kept.read_bytes() == content
        assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        upgrades = plane.backend.upgrades
        upgrades.look()
        (command,) = await plane.hub.poll(sessions["x1"], 0, 1.0)
        assert isinstance(command, Upgrade)
        assert (command.request_id, command.size_bytes) == (view["id"], len(content))
        wish = ReadRelease(session=sessions["x1"], sha256=view["sha256"], offset=99_990, size_bytes=1000)
        assert await upgrades.piece("x1", wish) == content[-10:]
        with pytest.raises(HubError, match="x2 is not asked to become this release"):
            await upgrades.piece("x2", wish)
        await plane.hub.report(
            Report(
                session=sessions["x1"],
                upgrades=[UpgradeTold(request_id=view["id"], stage="refused", sentence="no")],
            )
        )
        upgrades.look()
        over = await plane.get("upgrades/last")
        assert (over["state"], over["reason"], over["nodes"][1]["state"]) == ("stopped", "x1: no", "waiting")
        told = [event["event"] for event in (await plane.get("history")) if "upgrade" in event["event"]]
        assert told == ["upgrade stopped", "upgrade refused", "upgrade started"]  # the newest first
        assert not kept.exists()

    with_plane(body)


def test_of_two_rolls_that_are_started_at_once_one_is_refused(with_plane: Run, tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        join(plane, "x1")
        # With a key to prove it by, which is read beside everything else.
        (tmp_path / "release.pub").write_bytes(
            KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
        upgrades = plane.backend.upgrades
        upgrades._release_key = tmp_path / "release.pub"
        content, wish = a_file(tmp_path)
        assert (await plane.put(f"releases/{wish['sha256']}", content)).status_code == 200
        answers = await asyncio.gather(*(plane.post("upgrades", **wish) for _ in range(3)))
        assert sorted(answer.status_code for answer in answers) == [201, 409, 409]
        [begun] = [answer.json() for answer in answers if answer.status_code == 201]
        assert all(begun["id"] in answer.text for answer in answers)

    with_plane(body)


def test_an_empty_file_is_no_release(with_plane: Run) -> None:
    async def body(plane: Plane) -> None:
        answer = await plane.put(f"releases/{hashlib.sha256().hexdigest()}", b"")
        assert answer.status_code == 409
        assert "the file is empty, which no release is" in answer.text

    with_plane(body)


def test_a_roll_is_taken_up_by_the_next_server(with_plane: Run, tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        join(plane, "x1")
        _, view = await started(plane, tmp_path, "x1")
        plane.backend.upgrades.look()
        await plane.store.flush()
        releases = Releases(tmp_path / "state")
        again = Upgrades(plane.hub, plane.store, releases, release_key=tmp_path / "none")
        await again.restore()
        assert (await again.view(None, seen=None, wait_s=0)).nodes[0].state == "preparing"
        last = LastUpgrade(upgrade_id=view["id"], sha256=view["sha256"], version="0.1.5", outcome="trial")
        join(plane, "x1", version="0.1.5", last=last, counter=2)
        again.look()
        again._awake_s += STEADY_S
        again.look()
        assert (await again.view(view["id"], seen=None, wait_s=0)).state == "done"
        await plane.store.flush()
        events = await plane.store.history(subject="x1")
        assert [e.reason for e in events if e.event == "upgraded"] == ["llmgw 0.1.0 → 0.1.5"]

    with_plane(body)


def test_a_roll_whose_file_is_gone_with_the_restart_has_stopped_and_says_so(
    with_plane: Run, tmp_path: Path
) -> None:
    async def body(plane: Plane) -> None:
        join(plane, "x1")
        _, view = await started(plane, tmp_path, "x1")
        await plane.store.flush()
        (tmp_path / "state" / "releases" / view["sha256"]).unlink()
        again = Upgrades(plane.hub, plane.store, Releases(tmp_path / "state"), release_key=tmp_path / "none")
        await again.restore()
        over = await again.view(None, seen=None, wait_s=0)
        assert over.state == "stopped"
        assert f"{NAME} was not in the server's state folder" in over.reason
        assert [finding.check for finding in again.findings()] == ["upgrade"]
        await again.cancel(None, by="ops")
        assert again.findings() == []

    with_plane(body)


def test_a_server_that_has_the_key_refuses_another_keys_file_before_any_agent_is_asked(
    with_plane: Run, tmp_path: Path
) -> None:
    async def body(plane: Plane) -> None:
        join(plane, "x1")
        public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (tmp_path / "state" / "release.pub").write_bytes(public)
        content, wish = a_file(tmp_path, key=Ed25519PrivateKey.generate())
        await plane.put(f"releases/{wish['sha256']}", content)
        answer = await plane.post("upgrades", **wish)
        sentence = await plane.refused(answer, 409, "release")
        assert "was not made with" in sentence
        assert (await plane.get("upgrades/last"))["code"] == "no-upgrade"

    with_plane(body)


@pytest.mark.parametrize(
    ("changes", "status", "code", "words"),
    [
        ({"name": "llmgw.tar.gz"}, 409, "release", "is no file of a release"),
        ({"name": "llmgw-0.3.0-py3-none-any.whl"}, 409, "release", "is not understood by this server"),
        ({"sha256": "ab" * 32}, 409, "release", "send it again"),
        ({"nodes": ["nobody"]}, 404, "unknown-node", "there is no node 'nobody'"),
        ({"nodes": ["NO/body"]}, 400, "bad-request", "is not a node id"),
        ({"sha256": "../../etc/passwd"}, 400, "bad-request", "StartUpgrade"),
        ({"back_within_s": 0}, 400, "bad-request", "StartUpgrade"),
    ],
)
def test_an_upgrade_that_cannot_be_is_a_sentence(
    with_plane: Run, tmp_path: Path, changes: dict[str, Any], status: int, code: str, words: str
) -> None:
    async def body(plane: Plane) -> None:
        content, wish = a_file(tmp_path)
        await plane.put(f"releases/{wish['sha256']}", content)
        answer = await plane.post("upgrades", **{**wish, **changes})
        assert words in await plane.refused(answer, status, code)

    with_plane(body)


def test_there_is_one_upgrade_at_a_time(with_plane: Run, tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        join(plane, "x1")
        _, view = await started(plane, tmp_path, "x1")
        answer = await plane.post("upgrades", **{key: view[key] for key in ("name", "sha256", "signature")})
        assert view["id"] in await plane.refused(answer, 409, "busy")
        assert (await plane.delete("upgrades/last")).json()["message"] == "no further node is begun with"
        plane.backend.upgrades.look()
        assert (await plane.get("upgrades/last"))["state"] == "cancelled"

    with_plane(body)


def test_whoever_follows_is_answered_at_the_next_change(with_plane: Run, tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        join(plane, "x1")
        _, view = await started(plane, tmp_path, "x1")
        following = asyncio.create_task(plane.get(f"upgrades/{view['id']}?seen={view['change']}&wait=20"))
        await asyncio.sleep(0)
        plane.backend.upgrades.look()
        assert (await following)["nodes"][0]["state"] == "preparing"

    with_plane(body)


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def receive(releases: Releases, sha256: str, *parts: bytes) -> int:
    return asyncio.run(releases.receive(sha256, pieces(*parts)))


def test_what_arrives_as_another_file_than_it_was_sent_as_is_not_kept(tmp_path: Path) -> None:
    releases = Releases(tmp_path)
    with pytest.raises(ReleaseError, match="what arrived is not what was to be sent"):
        receive(releases, "ab" * 32, b"one", b"two")
    assert list(releases.folder.iterdir()) == []


def test_a_file_without_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "RELEASE_BYTES_MAX", 1000)
    releases = Releases(tmp_path)
    with pytest.raises(ReleaseError, match="more than 1000 bytes"):
        receive(releases, "ab" * 32, *[b"x" * 300] * 4)
    assert list(releases.folder.iterdir()) == []


def test_an_upload_does_not_take_the_last_of_the_disk_from_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "RESERVE_BYTES", 2**62)
    releases = Releases(tmp_path)
    with pytest.raises(ReleaseError, match="are kept for the server's database; make room there"):
        receive(releases, "ab" * 32, b"one")
    assert list(releases.folder.iterdir()) == []


def test_an_upload_that_stalls_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "CHUNK_WAIT_S", 0.05)
    releases = Releases(tmp_path)

    async def stalled() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.Event().wait()

    with pytest.raises(ReleaseError, match="nothing of the file came"):
        asyncio.run(releases.receive("ab" * 32, stalled()))
    assert list(releases.folder.iterdir()) == []
    content = b"whole"
    assert receive(releases, hashlib.sha256(content).hexdigest(), content) == 5


def test_one_file_is_sent_at_a_time(tmp_path: Path) -> None:
    async def body() -> None:
        releases, goes_on = Releases(tmp_path), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"one"
            await goes_on.wait()

        first = asyncio.create_task(releases.receive(hashlib.sha256(b"one").hexdigest(), slow()))
        await asyncio.sleep(0)
        with pytest.raises(ReleaseError, match="another release is being sent"):
            await releases.receive("ab" * 32, pieces(b"two"))
        releases.keep_only(None)
        goes_on.set()
        assert await first == 3

    asyncio.run(body())
