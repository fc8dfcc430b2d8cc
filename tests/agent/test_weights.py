"""Weights fetched over a real socket into a real folder: once, whole, and continued where they ended."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import json
import os
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.weights.files import SYNC_EVERY_BYTES, PartRecord
from llmgw.agent.weights.keeper import Weights
from llmgw.messages.agent import ListWeights, Progress, RemoveWeights
from tests.agent.fakes import make_config, make_spec
from tests.agent.file_server import FileServer
from tests.agent.waiting import until

CONTENT = b"GGUF" + bytes(range(256)) * 4096 + b"the end"
CHECKSUM = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
QUARTER = len(CONTENT) // 4


@pytest.fixture
def files() -> Iterator[FileServer]:
    with FileServer(CONTENT) as server:
        yield server


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(), 25)

    asyncio.run(limited())


def make_weights(folder: Path, boot_id: str = "boot", **keys: Any) -> Weights:
    config = make_config(folder / "work").model_copy()
    config = type(config).model_validate(
        {**config.model_dump(), "weights": {"dir": str(folder / "weights"), "reserve": "0B", **keys}}
    )
    return Weights(config, boot_id=boot_id, now_boot_s=time.monotonic, first_wait_s=0.01)


def downloads() -> list[str]:
    """Those that go on, whoever waits for them."""
    return [name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("download ")]


class Fetch:
    """One shard's fetch, with what was shown and told meanwhile."""

    def __init__(self, weights: Weights, source: str, **changes: Any) -> None:
        self.spec = make_spec(source=source, **changes)
        self.weights = weights
        self.shown: list[Progress] = []
        self.news: list[str] = []
        path = weights.model_path(self.spec)
        assert path is not None
        self.path = Path(path)
        self.part = Path(f"{path}.part")
        self.task = asyncio.create_task(self.run())

    async def run(self) -> str | None:
        return await self.weights.fetch(
            self.spec, since_boot_s=time.monotonic(), on_progress=self.shown.append, on_news=self.news.append
        )

    async def part_holds(self, count: int) -> None:
        await until(lambda: self.part.exists() and self.part.stat().st_size >= count, f"{count} bytes are there")

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def refused(folder: Path, source: str, **changes: Any) -> str:
    """The sentence with which a fetch fails."""
    said: list[str] = []

    async def test() -> None:
        weights = make_weights(folder, **changes.pop("weights", {}))
        fetch = Fetch(weights, source, **changes)
        sentence = await fetch.task
        assert sentence is not None
        assert not fetch.path.exists()
        said.append(sentence)
        await weights.close()

    run(test)
    return said[0]


def fetched(folder: Path, source: str, **changes: Any) -> Fetch:
    """A fetch that went well."""
    found: list[Fetch] = []

    async def test() -> None:
        weights = make_weights(folder, **changes.pop("weights", {}))
        fetch = Fetch(weights, source, **changes)
        assert await fetch.task is None
        found.append(fetch)

    run(test)
    return found[0]


def test_a_file_is_put_in_its_place_whole_and_readable_by_engines(files: FileServer, tmp_path: Path) -> None:
    fetch = fetched(tmp_path, files.url())
    assert fetch.path == tmp_path / "weights" / "http" / f"127.0.0.1:{files.port}" / "models" / "tiny.gguf"
    assert fetch.path.read_bytes() == CONTENT
    assert fetch.path.stat().st_mode & 0o777 == 0o644
    assert fetch.path.parent.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in fetch.path.parent.iterdir()) == ["tiny.gguf", "tiny.gguf.fetched.json"]


def test_what_is_present_is_not_asked_for(files: FileServer, tmp_path: Path) -> None:
    fetched(tmp_path, files.url())
    assert len(files.asked) == 1
    for checksum in (None, CHECKSUM, CHECKSUM):
        fetched(tmp_path, files.url(), checksum=checksum)
    assert len(files.asked) == 1


def test_a_file_that_was_put_there_by_hand_is_taken_as_it_is(files: FileServer, tmp_path: Path) -> None:
    weights = make_weights(tmp_path)
    path = Path(weights.model_path(make_spec(source=files.url())) or "")
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    fetched(tmp_path, files.url())
    fetched(tmp_path, files.url(), checksum=CHECKSUM)
    assert files.asked == []


def test_one_download_serves_all_shards_that_want_the_file(files: FileServer, tmp_path: Path) -> None:
    async def test() -> None:
        files.held_after = QUARTER
        weights = make_weights(tmp_path)
        fetches = [Fetch(weights, files.url()) for _ in range(3)]
        await until(lambda: all(fetch.shown for fetch in fetches), "all of them see progress")
        files.gate.set()
        assert [await fetch.task for fetch in fetches] == [None, None, None]
        assert len(files.asked) == 1

    run(test)


def test_a_stop_ends_the_download_at_once_unless_another_shard_wants_it(
    files: FileServer, tmp_path: Path
) -> None:
    async def test() -> None:
        files.held_after = QUARTER
        weights = make_weights(tmp_path)
        one, two = Fetch(weights, files.url()), Fetch(weights, files.url())
        await until(lambda: one.shown and two.shown, "both see progress")
        await one.stop()
        files.gate.set()
        assert await two.task is None
        assert len(files.asked) == 1

        files.gate.clear()
        three = Fetch(weights, files.url("/other.gguf"))
        await until(lambda: three.shown and three.shown[-1].done_bytes, "bytes come")
        began = time.monotonic()
        await three.stop()
        await until(lambda: not downloads(), "the download has ended")
        assert time.monotonic() - began < 2
        assert three.part.stat().st_size == QUARTER

    run(test)


def test_the_next_agent_goes_on_where_the_last_one_ended(files: FileServer, tmp_path: Path) -> None:
    async def test() -> None:
        files.held_after = QUARTER
        weights = make_weights(tmp_path)
        first = Fetch(weights, files.url())
        await until(lambda: first.shown and first.shown[-1].done_bytes == QUARTER, "a quarter is there")
        first.task.cancel()
        await weights.close()
        assert first.part.stat().st_size == QUARTER
        files.gate.set()
        second = Fetch(make_weights(tmp_path), files.url(), checksum=CHECKSUM)
        assert await second.task is None
        assert second.path.read_bytes() == CONTENT
        assert files.asked[1][1]["range"] == f"bytes={QUARTER}-"
        assert files.asked[1][1]["if-range"] == '"one"'
        assert second.news == []

    run(test)


def test_after_a_power_cut_only_what_was_synced_is_trusted(files: FileServer, tmp_path: Path) -> None:
    async def test() -> None:
        files.held_after = QUARTER
        weights = make_weights(tmp_path, boot_id="before")
        first = Fetch(weights, files.url())
        await until(lambda: first.shown and first.shown[-1].done_bytes == QUARTER, "a quarter is there")
        first.task.cancel()
        await weights.close()
        record = json.loads(Path(f"{first.part}.json").read_text())
        assert record["synced_bytes"] == 0
        assert len(CONTENT) < SYNC_EVERY_BYTES
        files.gate.set()
        second = Fetch(make_weights(tmp_path, boot_id="after"), files.url())
        assert await second.task is None
        assert "range" not in files.asked[1][1]
        assert second.path.read_bytes() == CONTENT

    run(test)


def test_a_lost_connection_is_taken_up_again_and_said_meanwhile(files: FileServer, tmp_path: Path) -> None:
    files.cuts = [QUARTER, 0, QUARTER]
    fetch = fetched(tmp_path, files.url(), checksum=CHECKSUM)
    assert fetch.path.read_bytes() == CONTENT
    assert [headers.get("range") for _, headers in files.asked] == [
        None,
        f"bytes={QUARTER}-",
        f"bytes={QUARTER}-",
        f"bytes={2 * QUARTER}-",
    ]
    assert fetch.news == []


def test_a_server_that_is_busy_is_asked_again(files: FileServer, tmp_path: Path) -> None:
    files.statuses = [(503, {"retry-after": "0"}), (429, {}), (500, {})]
    fetched(tmp_path, files.url())
    assert len(files.asked) == 4


@pytest.mark.parametrize("honours_if_range", [True, False])
def test_a_file_that_changes_half_way_is_started_over_once_and_that_is_said(
    files: FileServer, tmp_path: Path, honours_if_range: bool
) -> None:
    def change() -> None:
        if len(files.asked) == 2:
            files.etag, files.content = '"two"', b"GGUF" + b"another" * 100_000

    files.honours_if_range = honours_if_range
    files.cuts = [QUARTER]
    files.before = change
    fetch = fetched(tmp_path, files.url())
    assert fetch.path.read_bytes() == files.content
    assert len(fetch.news) == 1
    assert "has changed at its source" in fetch.news[0]


def test_a_file_that_became_shorter_than_what_is_here_is_started_over(files: FileServer, tmp_path: Path) -> None:
    def change() -> None:
        if len(files.asked) == 2:
            files.content = b"GGUF" + b"short"

    files.honours_if_range = False
    files.cuts = [QUARTER]
    files.before = change
    fetch = fetched(tmp_path, files.url())
    assert fetch.path.read_bytes() == files.content
    assert len(fetch.news) == 1


def test_a_file_that_changes_again_and_again_is_given_up(files: FileServer, tmp_path: Path) -> None:
    def change() -> None:
        files.etag = f'"{len(files.asked)}"'

    files.cuts = [QUARTER] * 9
    files.before = change
    said = refused(tmp_path, files.url())
    assert "has changed at its source" in said
    assert "started over once already" in said


def test_a_server_without_ranges_is_started_over_once(files: FileServer, tmp_path: Path) -> None:
    files.ranges = False
    files.cuts = [QUARTER]
    fetch = fetched(tmp_path, files.url())
    assert fetch.path.read_bytes() == CONTENT
    assert "cannot continue a download" in fetch.news[0]
    files.cuts = [QUARTER, QUARTER]
    assert "started over once already" in refused(tmp_path, files.url("/again.gguf"))


@pytest.mark.parametrize(("etag", "modified"), [(None, None), ('W/"weak"', None)])
def test_without_a_strong_validator_nothing_is_glued_together(
    files: FileServer, tmp_path: Path, etag: str | None, modified: str | None
) -> None:
    files.etag, files.modified = etag, modified
    files.cuts = [QUARTER]
    fetched(tmp_path, files.url())
    assert all("range" not in headers for _, headers in files.asked)


def test_the_time_of_change_stands_in_for_an_etag(files: FileServer, tmp_path: Path) -> None:
    files.etag, files.modified = None, "Tue, 15 Nov 1994 12:45:26 GMT"
    files.cuts = [QUARTER]
    fetched(tmp_path, files.url())
    assert files.asked[1][1]["if-range"] == files.modified


def test_without_a_length_bytes_are_so_far_and_nothing_is_invented(files: FileServer, tmp_path: Path) -> None:
    async def test() -> None:
        files.says_length = False
        files.held_after = QUARTER
        weights = make_weights(tmp_path)
        fetch = Fetch(weights, files.url())
        await until(lambda: fetch.shown and fetch.shown[-1].done_bytes == QUARTER, "a quarter is there")
        assert (fetch.shown[-1].total_bytes, fetch.shown[-1].left_s) == (None, None)
        files.gate.set()
        assert await fetch.task is None
        assert fetch.path.read_bytes() == CONTENT

    run(test)


def test_progress_carries_bytes_rate_and_time_left(files: FileServer, tmp_path: Path) -> None:
    async def test() -> None:
        weights = make_weights(tmp_path, bandwidth_limit="300kB")
        fetch = Fetch(weights, files.url())
        await until(lambda: fetch.shown and fetch.shown[-1].left_s is not None, "a rate is known")
        last = fetch.shown[-1]
        assert last.what == "weights"
        assert last.total_bytes == len(CONTENT)
        assert last.rate_bytes_s is not None
        assert 100_000 < last.rate_bytes_s < 500_000
        assert last.done_bytes is not None
        assert last.left_s == pytest.approx((len(CONTENT) - last.done_bytes) / last.rate_bytes_s, abs=0.1)
        await fetch.stop()

    run(test)


def test_the_bandwidth_limit_holds_for_all_downloads_together(files: FileServer, tmp_path: Path) -> None:
    async def test() -> None:
        weights = make_weights(tmp_path, bandwidth_limit="2MB")
        began = time.monotonic()
        fetches = [Fetch(weights, files.url(f"/{number}.gguf")) for number in range(3)]
        assert [await fetch.task for fetch in fetches] == [None] * 3
        assert time.monotonic() - began >= 3 * len(CONTENT) / 2e6 * 0.8

    run(test)


# Sentences.


@pytest.mark.parametrize(
    ("status", "part"),
    [
        (404, "does not exist (404); check the source"),
        (410, "does not exist (410)"),
        (401, "refuses this node (401); name a file with a token for 127.0.0.1 under weights.token_files"),
        (403, "refuses this node (403)"),
        (418, "answers 418 and no file"),
    ],
)
def test_a_refusal_is_a_sentence_at_once(files: FileServer, tmp_path: Path, status: int, part: str) -> None:
    files.always = (status, {}, b"")
    said = refused(tmp_path, files.url() + "?rev=1")
    assert part in said
    assert files.url() in said
    assert "rev=1" not in said
    assert len(files.asked) == 1


def test_a_server_that_stays_broken_is_named_after_a_few_tries(files: FileServer, tmp_path: Path) -> None:
    files.always = (502, {}, b"")
    assert "answers 502 (5 tries)" in refused(tmp_path, files.url())


@pytest.mark.parametrize("path", ["/models/tiny.gguf", "/models/weights.bin"])
def test_a_redirect_to_a_login_page_is_told_as_one(files: FileServer, tmp_path: Path, path: str) -> None:
    files.redirects = {path: "/login?next=secret"}
    files.always = (200, {"content-type": "text/html; charset=utf-8"}, b"<html>sign in</html>")
    said = refused(tmp_path, files.url(path))
    assert f"(redirected to {files.url('/login')}) answers with a web page" in said
    assert "secret" not in said


def test_a_body_that_is_no_gguf_is_refused_before_it_is_kept(files: FileServer, tmp_path: Path) -> None:
    files.content = b"  <!doctype html><title>Sign in</title>" * 50
    said = refused(tmp_path, files.url())
    assert "is not a GGUF file (it looks like a web page, such as a login page)" in said
    files.content = b"PK\x03\x04" * 50
    assert "does not begin with the letters GGUF" in refused(tmp_path, files.url())
    files.content = b""
    assert "is not a GGUF file" in refused(tmp_path, files.url())


@pytest.mark.parametrize("broken", ["missing", "login page", "too large"])
def test_what_is_refused_leaves_no_file_behind(files: FileServer, tmp_path: Path, broken: str) -> None:
    if broken == "missing":
        files.always = (404, {}, b"")
    elif broken == "login page":
        files.content = b"<!doctype html>" * 50
    refused(tmp_path, files.url(), weights={"reserve": "1000TiB" if broken == "too large" else "0B"})
    assert not [path for path in (tmp_path / "weights").rglob("*") if path.is_file()]


def test_the_empty_part_of_an_agent_that_was_killed_is_llmgws_to_remove(tmp_path: Path) -> None:
    async def test() -> None:
        weights = make_weights(tmp_path)
        part = tmp_path / "weights" / "https" / "host" / "x.gguf.part"
        part.parent.mkdir(parents=True)
        part.touch()
        command = RemoveWeights(seq=1, request_id="r", names=["https/host/x.gguf.part"], sources=[])
        answer = await weights.answer(command, dict)
        assert (answer.removed, answer.kept) == (["https/host/x.gguf.part"], {})

    run(test)


def test_redirects_are_followed_so_far_and_only_over_http(files: FileServer, tmp_path: Path) -> None:
    files.redirects = {"/a.gguf": "/b.gguf", "/b.gguf": files.url("/c.gguf")}
    fetched(tmp_path, files.url("/a.gguf"))
    files.redirects = {"/loop.gguf": "/loop.gguf"}
    assert "redirects more than 5 times" in refused(tmp_path, files.url("/loop.gguf"))
    files.redirects = {"/x.gguf": "file:///etc/passwd"}
    assert "redirects to file:, which is not followed" in refused(tmp_path, files.url("/x.gguf"))
    files.redirects = {"/y.gguf": "http://user:pw@127.0.0.1/"}
    said = refused(tmp_path, files.url("/y.gguf"))
    assert "with a password, which is not followed" in said
    assert "pw" not in said


def test_nobody_at_the_address_and_a_name_that_nobody_knows_are_sentences(tmp_path: Path) -> None:
    with FileServer(CONTENT) as gone:
        url = gone.url()
    assert f"nothing listens at 127.0.0.1:{gone.port}" in refused(tmp_path, url)
    assert "the name no.such.host.invalid cannot be resolved" in refused(
        tmp_path, "http://no.such.host.invalid/a.gguf"
    )


def test_a_certificate_of_an_unknown_authority_is_refused_and_believed_once_it_is_named(tmp_path: Path) -> None:
    from llmgw.pki.authority import Authority
    from llmgw.pki.handout import write_files

    authority = Authority.create(tmp_path / "pki", now=time.time())
    pair = write_files(authority.issue_server(["127.0.0.1"], time.time()), tmp_path / "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair["cert"], pair["key"])
    with FileServer(CONTENT, context=context) as files:
        said = refused(tmp_path, files.url())
        assert "is not believed" in said
        assert "weights.ca" in said
        token = tmp_path / "token"
        token.write_text("hf_abc\nrest")
        token.chmod(0o600)
        keys = {"ca": pair["ca"], "token_files": {f"127.0.0.1:{files.port}": str(token)}}
        fetched(tmp_path, files.url(), weights=keys)
        assert files.asked[-1][1]["authorization"] == "Bearer hf_abc"
        files.redirects = {"/r.gguf": f"http://127.0.0.1:{files.port}/models/tiny.gguf"}
        assert "from https to plain http" in refused(tmp_path, files.url("/r.gguf"), weights=keys)


def test_a_token_goes_to_its_own_host_and_nowhere_else(files: FileServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hf_abc\n")
    token.chmod(0o600)
    keys = {"token_files": {"127.0.0.1": str(token)}}
    with FileServer(CONTENT) as elsewhere:
        files.redirects = {"/models/tiny.gguf": elsewhere.url(host="localhost")}
        fetched(tmp_path, files.url(), weights=keys)
        assert files.asked[0][1]["authorization"] == "Bearer hf_abc"
        assert "authorization" not in elsewhere.asked[0][1]
    token.chmod(0o644)
    assert "others may read; chmod 600" in refused(tmp_path, files.url("/x.gguf"), weights=keys)
    token.unlink()
    assert "cannot be read: No such file" in refused(tmp_path, files.url("/x.gguf"), weights=keys)


def test_a_file_larger_than_the_disk_is_refused_before_a_byte_is_written(
    files: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refused(tmp_path, files.url(), weights={"reserve": "1000TiB"})
    assert "1.0 MiB more" in said
    assert "weights.reserve" in said
    assert not list((tmp_path / "weights").rglob("*.part.json"))

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2 * len(CONTENT) - 100))

    async def test() -> None:
        files.held_after = 10
        weights = make_weights(tmp_path)
        first = Fetch(weights, files.url())
        await until(lambda: first.shown and first.shown[-1].done_bytes == 10, "the first has begun")
        second = Fetch(weights, files.url("/second.gguf"))
        sentence = await second.task
        assert sentence is not None
        assert "other downloads" in sentence
        await first.stop()

    run(test)


class SmallDisk(io.FileIO):
    """A file of a disk that has been filled up meanwhile: it takes part of what is written, then nothing."""

    room = 0

    def write(self, data: Any) -> int:
        if not SmallDisk.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = super().write(memoryview(data)[: SmallDisk.room])
        SmallDisk.room -= taken
        return taken


def test_a_disk_that_runs_full_is_a_sentence_and_the_download_goes_on_when_there_is_room(
    files: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdopen = os.fdopen

    def on_small_disk(fd: int, mode: str, *more: Any, **how: Any) -> Any:
        return SmallDisk(fd, mode) if mode == "r+b" else fdopen(fd, mode, *more, **how)

    monkeypatch.setattr("llmgw.agent.weights.files.os.fdopen", on_small_disk)
    monkeypatch.setattr(SmallDisk, "room", QUARTER)
    said = refused(tmp_path, files.url(), checksum=CHECKSUM)
    assert f"the disk of {tmp_path / 'weights'}" in said
    assert "is full; make room (llmgw ctl models --on-disk), or set weights.dir" in said
    monkeypatch.setattr(SmallDisk, "room", 2 * len(CONTENT))
    assert fetched(tmp_path, files.url(), checksum=CHECKSUM).path.read_bytes() == CONTENT
    assert [headers.get("range") for _, headers in files.asked] == [None, f"bytes={QUARTER}-"]


def test_a_disk_too_full_for_a_record_is_the_same_sentence(
    files: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("llmgw.agent.weights.files.write_whole", full)
    assert "is full; make room" in refused(tmp_path, files.url())
    monkeypatch.undo()
    assert fetched(tmp_path, files.url()).path.read_bytes() == CONTENT


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of half the size that the file needs."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={len(CONTENT) // 2}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "none", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root mounts a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_real_disk_that_somebody_else_fills_is_told_as_full(
    files: FileServer, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(small_disk)
    # What was free when the download began, and is not any more.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2 * len(CONTENT)))
    said = refused(small_disk, files.url())
    assert "is full; make room" in said


def test_a_wrong_checksum_keeps_the_file_out_and_is_not_downloaded_again(
    files: FileServer, tmp_path: Path
) -> None:
    wrong = "sha256:" + "0" * 64
    for _ in range(2):
        said = refused(tmp_path, files.url(), checksum=wrong)
        assert CHECKSUM in said
        assert wrong in said
    assert len(files.asked) == 2
    assert "range" not in files.asked[1][1]
    # The right one needs no byte more.
    fetched(tmp_path, files.url(), checksum=CHECKSUM)
    assert len(files.asked) == 2


def test_a_checksum_that_changes_with_the_file_fetches_the_new_one(files: FileServer, tmp_path: Path) -> None:
    fetched(tmp_path, files.url(), checksum=CHECKSUM)
    files.content, files.etag = b"GGUF" + b"new" * 1000, '"two"'
    other = "sha256:" + hashlib.sha256(files.content).hexdigest()
    fetch = fetched(tmp_path, files.url(), checksum=other)
    assert fetch.path.read_bytes() == files.content
    assert "another checksum" in fetch.news[0]


def test_a_file_by_hand_with_another_checksum_is_never_overwritten(files: FileServer, tmp_path: Path) -> None:
    path = Path(make_weights(tmp_path).model_path(make_spec(source=files.url())) or "")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF mine")

    async def test() -> None:
        for _ in range(2):
            sentence = await Fetch(make_weights(tmp_path), files.url(), checksum=CHECKSUM).task
            assert sentence is not None
            assert "was put there by hand" in sentence

    run(test)
    assert path.read_bytes() == b"GGUF mine"
    assert files.asked == []


def test_a_download_that_stands_still_is_given_up_and_progress_moves_no_deadline(
    files: FileServer, tmp_path: Path
) -> None:
    files.held_after = QUARTER
    said = refused(tmp_path, files.url(), fetch_stall_limit_s=0.3)
    assert "stood still for 0.3 s" in said
    assert "fetch_stall_limit" in said
    assert next(tmp_path.rglob("*.part")).stat().st_size == QUARTER
    files.held_after = None
    limit = {"bandwidth_limit": "65536B"}
    said = refused(tmp_path, files.url("/slow.gguf"), fetch_timeout_s=0.5, weights=limit)
    assert "was not fetched within 0.5 s" in said


def test_a_model_in_several_files_is_fetched_whole_beside_each_other(files: FileServer, tmp_path: Path) -> None:
    fetch = fetched(tmp_path, files.url("/big-00002-of-00003.gguf"))
    assert fetch.path.name == "big-00001-of-00003.gguf"
    assert [path for path, _ in files.asked] == [f"/big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def test_a_file_of_a_share_is_copied_once_and_continued(tmp_path: Path) -> None:
    share = tmp_path / "share" / "tiny.gguf"
    share.parent.mkdir()
    share.write_bytes(CONTENT)
    source = f"file://{share}"
    path = Path(make_weights(tmp_path).model_path(make_spec(source=source)) or "")
    path.parent.mkdir(parents=True)
    facts = share.stat()
    Path(f"{path}.part").write_bytes(CONTENT[:QUARTER])
    etag = f'"{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}"'
    record = PartRecord(url=source, etag=etag, total_bytes=len(CONTENT), boot_id="boot")
    import msgspec

    Path(f"{path}.part.json").write_bytes(msgspec.json.encode(record))
    fetch = fetched(tmp_path, source, checksum=CHECKSUM)
    assert (fetch.path.read_bytes(), fetch.news) == (CONTENT, [])
    share.unlink()
    fetched(tmp_path, source)


# Sources that are refused before anything else.


def problem_of(weights: Weights, **changes: Any) -> str | None:
    return asyncio.run(weights.problem(make_spec(**changes)))


def test_a_path_must_exist_on_the_node_and_a_name_is_the_engines(tmp_path: Path) -> None:
    weights = make_weights(tmp_path)
    there = tmp_path / "there.gguf"
    there.write_bytes(CONTENT)
    for source in ("", "org/name", str(there), str(tmp_path), f"file://{there}", os.path.relpath(there)):
        assert problem_of(weights, source=source) is None
        assert (weights.model_path(make_spec(source=source)) is None) == ("://" not in source)
    for source in (f"{tmp_path}/gone.gguf", "./gone.gguf", f"file://{tmp_path}/gone.gguf"):
        assert "does not exist on this node" in (problem_of(weights, source=source) or "")


def test_a_share_that_hangs_is_a_sentence_and_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    come_back = threading.Event()
    stat = os.stat

    def hang(path: Any, *args: Any, **more: Any) -> Any:
        if str(path).startswith("/share"):
            come_back.wait(20)
        return stat(path, *args, **more)

    monkeypatch.setattr(os, "stat", hang)
    monkeypatch.setattr("llmgw.agent.weights.keeper.CHECK_LIMIT_S", 0.1)
    weights = make_weights(tmp_path)
    for _ in range(20):
        assert "does not answer within 0.1 s" in (problem_of(weights, source="/share/x.gguf") or "")
    come_back.set()


def test_what_must_be_fetched_is_for_replicas_of_one_node(files: FileServer, tmp_path: Path) -> None:
    weights = make_weights(tmp_path)
    said = problem_of(weights, source=files.url(), nodes=2)
    assert said is not None
    assert "replicas of one node only" in said
    fetched(tmp_path, files.url())
    assert problem_of(weights, source=files.url(), nodes=2) is None


# What is on the disk.


def test_the_folder_is_listed_with_who_refers_to_what_and_only_the_rest_is_removed(
    files: FileServer, tmp_path: Path
) -> None:
    async def test() -> None:
        weights = make_weights(tmp_path)
        urls = {name: files.url(f"/{name}.gguf") for name in ("wanted", "running", "old", "by-path", "folder/x")}
        for url in urls.values():
            assert await Fetch(weights, url).task is None
        files.held_after = QUARTER
        half = Fetch(weights, files.url("/half.gguf"))
        await until(lambda: half.shown and half.shown[-1].done_bytes == QUARTER, "a quarter is there")
        await half.stop()
        await until(lambda: not downloads(), "the download has ended")
        (tmp_path / "weights" / "mine.txt").write_text("by hand")
        root = tmp_path / "weights" / "http" / f"127.0.0.1:{files.port}"
        sources = [
            urls["wanted"],
            str(root / "by-path.gguf"),
            str(root / "folder"),
            "org/name",
            "https://u:p@x/y",
        ]
        held = {"r1.0": urls["running"]}

        answer = await weights.answer(ListWeights(seq=1, request_id="q", sources=sources), lambda: held)
        assert answer.error is None
        assert answer.listing is not None
        found = {Path(file.name).name: file for file in answer.listing.files}
        assert {name: (file.state, file.sources, file.shards) for name, file in found.items()} == {
            "wanted.gguf": ("complete", [urls["wanted"]], []),
            "running.gguf": ("complete", [], ["r1.0"]),
            "old.gguf": ("complete", [], []),
            "by-path.gguf": ("complete", [str(root / "by-path.gguf")], []),
            "x.gguf": ("complete", [str(root / "folder")], []),
            "half.gguf.part": ("partial", [], []),
            "mine.txt": ("foreign", [], []),
        }
        assert (found["half.gguf.part"].size_bytes, found["half.gguf.part"].total_bytes) == (
            QUARTER,
            len(CONTENT),
        )
        assert answer.listing.disk_free_bytes

        names = [file.name for file in answer.listing.files]
        command = RemoveWeights(seq=2, request_id="r", names=[*names, "../../etc/passwd"], sources=sources)
        answer = await weights.answer(command, lambda: held)
        assert sorted(Path(name).name for name in answer.removed) == ["half.gguf.part", "old.gguf"]
        assert {Path(name).name for name in answer.kept} == set(found) - {"half.gguf.part", "old.gguf"} | {
            "passwd"
        }
        left = sorted(path.name for path in root.rglob("*") if path.is_file())
        assert left == sorted(
            f"{name}.gguf{suffix}"
            for name in ("wanted", "running", "by-path", "x")
            for suffix in ("", ".fetched.json")
        )

    run(test)


def test_what_is_being_fetched_is_not_removed(files: FileServer, tmp_path: Path) -> None:
    async def test() -> None:
        files.held_after = QUARTER
        weights = make_weights(tmp_path)
        fetch = Fetch(weights, files.url())
        await until(lambda: fetch.shown and fetch.shown[-1].done_bytes == QUARTER, "a quarter is there")
        name = str(fetch.part.relative_to(weights.root))
        answer = await weights.answer(RemoveWeights(seq=1, request_id="q", names=[name]), dict)
        assert answer.kept == {name: "it is being fetched"}
        files.gate.set()
        assert await fetch.task is None

    run(test)
