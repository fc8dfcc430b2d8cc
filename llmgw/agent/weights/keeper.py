"""The weights of one node: what a shard's source means here, and one download for all shards that want a file.

A download has no deadline of its own: each shard that waits for it has. It ends when nobody waits any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import structlog

from llmgw.agent.weights import cache
from llmgw.agent.weights.answers import Answer, CannotFetch, Validator
from llmgw.agent.weights.download import FIRST_WAIT_S, Download, Means
from llmgw.agent.weights.files import fetched_record
from llmgw.agent.weights.meter import Throttle
from llmgw.agent.weights.over_disk import DiskPlace
from llmgw.agent.weights.over_http import HttpPlace
from llmgw.agent.weights.own_thread import DiskHangs, OwnThreads
from llmgw.config.agent import AgentConfig
from llmgw.config.sources import PART_SUFFIX, RemoteFile, Source, SourceError, read_source
from llmgw.messages.agent import (
    ListWeights,
    Progress,
    RemoveWeights,
    ShardSpec,
    WeightsAnswer,
    WeightsListing,
)

log = structlog.get_logger("agent")

LOOK_S = 0.5
LIST_TIMEOUT_S = 20.0
# The lock that starts shards is held meanwhile, and heartbeats wait for it.
CHECK_LIMIT_S = 3.0


class Weights:
    """Fetches, lists and removes. `now_boot_s` is CLOCK_BOOTTIME, which shards' deadlines are in;
    `first_wait_s` is the first wait after a try that failed.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        boot_id: str,
        now_boot_s: Callable[[], float],
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self.root = Path(os.path.abspath(config.weights_dir))
        self._now_boot_s = now_boot_s
        self._http = HttpPlace(ca=config.weights.ca, token_files=config.weights.token_files)
        self._threads = OwnThreads()
        self._disk = DiskPlace(self._threads)
        self._running: dict[Path, _Running] = {}
        self._means = Means(
            open=self._open,
            boot_id=boot_id,
            reserve_bytes=config.weights.reserve,
            throttle=Throttle(config.weights.bandwidth_limit, time.monotonic),
            now_s=time.monotonic,
            promised_bytes=self._promised,
            first_wait_s=first_wait_s,
        )

    # What a source means here.

    def model_path(self, spec: ShardSpec) -> str | None:
        """Where the engine finds what is fetched for it; None when its source is not fetched."""
        with contextlib.suppress(SourceError):
            files = read_source(spec.source).files
            if files:
                return str(self.root / files[0].name)
        return None

    async def problem(self, spec: ShardSpec) -> str | None:
        """Why the source cannot be meant on this node, as a sentence; None when it can. Bounded in time."""
        try:
            return await self._threads.call(partial(self._problem, spec), CHECK_LIMIT_S)
        except DiskHangs:
            return (
                f"source {spec.source!r} of model {spec.model!r}: the disk or share that it, or weights.dir, "
                f"lies on does not answer within {CHECK_LIMIT_S:g} s; look at mount and dmesg on this node"
            )

    async def missing(self, spec: ShardSpec) -> bool:
        """True when something must be fetched, or checked, before the engine can be launched. In bounded time."""
        try:
            return await self._threads.call(partial(self._missing, spec), CHECK_LIMIT_S)
        except DiskHangs:
            return False  # `problem` says it

    # Blocking, each of them.

    def _problem(self, spec: ShardSpec) -> str | None:
        try:
            source = read_source(spec.source)
        except SourceError as error:
            return f"model {spec.model!r}: {error}"
        where = f"source {source.text!r} of model {spec.model!r}"
        if source.kind == "path":
            return _path_problem(source.text, where)
        for file in source.files:
            if file.local_path is not None and not (self.root / file.name).exists():
                problem = _path_problem(file.local_path, where)
                if problem is not None:
                    return problem
        if spec.nodes > 1 and self._missing(spec):
            return (
                f"{where} is fetched for replicas of one node only, and profile {spec.profile!r} spans "
                f"{spec.nodes}; put the file on each of them as {self.model_path(spec)}, or give a path as source"
            )
        return None

    def _missing(self, spec: ShardSpec) -> bool:
        try:
            source = read_source(spec.source)
        except SourceError:
            return False
        return any(not self._is_there(file, _sha256(spec)) for file in source.files)

    # Fetching.

    async def fetch(
        self,
        spec: ShardSpec,
        *,
        since_boot_s: float,
        on_progress: Callable[[Progress], None],
        on_news: Callable[[str], None],
    ) -> str | None:
        """Until everything is there: None then, or a sentence. Cancelled, it ends unless another shard wants it.

        `since_boot_s` is when the spec's fetch timeout began. Progress never moves a deadline (invariant 9).
        """
        source: Source = read_source(spec.source)
        for number, file in enumerate(source.files, 1):
            note = f"file {number} of {len(source.files)}" if len(source.files) > 1 else ""

            def look(download: Download, note: str = note) -> None:
                on_progress(download.progress(note))

            problem = await self._fetch_file(file, spec, since_boot_s, look, on_news)
            if problem is not None:
                return problem
        return None

    async def _fetch_file(
        self,
        file: RemoteFile,
        spec: ShardSpec,
        since_boot_s: float,
        on_look: Callable[[Download], None],
        on_news: Callable[[str], None],
    ) -> str | None:
        sha256 = _sha256(spec)
        target = self.root / file.name
        while not await asyncio.to_thread(self._is_there, file, sha256):
            running = self._running.get(target)
            if running is None:
                running = self._running[target] = _Running(Download(file, target, sha256, self._means))
                running.task.add_done_callback(partial(self._ended, target))
            mine = not running.ending and running.download.sha256 == sha256
            problem = await self._wait(running, spec, since_boot_s, on_look, on_news)
            if mine or (problem is not None and not running.task.done()):
                return problem
            # Else it was another's, for another checksum, or given up just now: look again.
        return None

    async def _wait(
        self,
        running: _Running,
        spec: ShardSpec,
        since_boot_s: float,
        on_look: Callable[[Download], None],
        on_news: Callable[[str], None],
    ) -> str | None:
        """Until the download has ended, one way or another, or this shard's time is over."""
        download = running.download
        loop = asyncio.get_running_loop()
        began = loop.time()
        told = 0
        running.waiters += 1
        try:
            while True:
                left_s = since_boot_s + spec.fetch_timeout_s - self._now_boot_s()
                still_s = min(download.still_s(), loop.time() - began)
                for sentence in download.news[told:]:
                    on_news(sentence)
                told = len(download.news)
                if running.task.done():
                    return running.outcome()
                if left_s <= 0:
                    return _too_late(
                        download, f"was not fetched within {spec.fetch_timeout_s:g} s", "fetch_timeout"
                    )
                if still_s >= spec.fetch_stall_limit_s:
                    what = f"stood still for {spec.fetch_stall_limit_s:g} s"
                    return _too_late(download, what, "fetch_stall_limit")
                on_look(download)
                pause_s = max(0.01, min(LOOK_S, left_s, spec.fetch_stall_limit_s - still_s))
                await asyncio.wait({running.task}, timeout=pause_s)
        finally:
            running.waiters -= 1
            if running.waiters == 0 and not running.task.done():
                running.ending = True
                running.task.cancel()

    async def close(self) -> None:
        """End all downloads; the next agent goes on with their parts."""
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # For operators.

    async def answer(
        self, command: ListWeights | RemoveWeights, held: Callable[[], dict[str, str]]
    ) -> WeightsAnswer:
        """What is on the disk, after removing what nobody needs. `held` is shard id → source, at that moment."""
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                removed: list[str] = []
                kept: dict[str, str] = {}
                if isinstance(command, RemoveWeights):
                    busy = {name: "it is being fetched" for name in command.names if self._is_busy(name)}
                    names = [name for name in command.names if name not in busy]
                    removed, kept = await self._threads.call(
                        partial(cache.remove, self.root, names, command.sources, held)
                    )
                    kept |= busy
                    log.info("weights removed", removed=removed, kept=kept)
                found: WeightsListing = await self._threads.call(
                    partial(cache.listing, self.root, command.sources, held())
                )
        except (TimeoutError, DiskHangs):
            error = f"{self.root} could not be read within {LIST_TIMEOUT_S:g} s; look at its disk"
            return WeightsAnswer(request_id=command.request_id, error=error)
        except OSError as exc:
            error = f"{self.root} cannot be read: {exc.strerror}; look at weights.dir in agent.yaml"
            return WeightsAnswer(request_id=command.request_id, error=error)
        return WeightsAnswer(request_id=command.request_id, listing=found, removed=removed, kept=kept)

    # Inside.

    def _open(self, url: str, offset: int, validator: Validator) -> AbstractAsyncContextManager[Answer]:
        path = RemoteFile(url, "").local_path
        if path is not None:
            return self._disk.open(path, offset, validator)
        return self._http.open(url, offset, validator)

    def _is_there(self, file: RemoteFile, sha256: str | None) -> bool:
        """True when the file is in its place, whole, and known to have that checksum. Blocking."""
        target = self.root / file.name
        try:
            size = target.stat().st_size if target.is_file() else None
        except OSError:
            size = None
        if size is None:
            return False
        record = fetched_record(target)
        if record is not None and not record.by_hand and record.size_bytes != size:
            return False
        return sha256 is None or (record is not None and record.sha256 == sha256)

    def _is_busy(self, name: str) -> bool:
        return self.root / name.removesuffix(PART_SUFFIX) in self._running

    def _promised(self, asking: Download) -> int:
        return sum(each.download.left_bytes for each in self._running.values() if each.download is not asking)

    def _ended(self, target: Path, task: asyncio.Task[None]) -> None:
        self._running.pop(target, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("download failed", file=str(target), reason=str(task.exception()))


class _Running:
    """A download in its task, and how many wait for it."""

    def __init__(self, download: Download) -> None:
        self.download = download
        self.task = asyncio.create_task(download.run(), name=f"download {download.file.name}")
        self.waiters = 0
        self.ending = False

    def outcome(self) -> str | None:
        """How it ended: None when the file is there."""
        if self.task.cancelled():
            return "the download was given up"
        error = self.task.exception()
        if error is None:
            return None
        if isinstance(error, CannotFetch):
            return str(error)
        return f"{self.download.file.shown} could not be fetched: {error!r}"


def _sha256(spec: ShardSpec) -> str | None:
    return spec.checksum.removeprefix("sha256:") if spec.checksum is not None else None


def _too_late(download: Download, what: str, key: str) -> str:
    why = f": {download.trouble}" if download.trouble else ""
    return (
        f"{download.file.shown} {what}{why}; what is here is kept and continued at the next start; look at the "
        f"network and that host, or raise the profile's {key}"
    )


def _path_problem(path: str, where: str) -> str | None:
    """Why a path cannot be loaded, as a sentence. Blocking."""
    if "\0" in path:
        return f"{where} holds a NUL character, which no path can"
    absolute = os.path.abspath(path)
    shown = "" if absolute == path else f", which is {absolute} to this agent,"
    try:
        os.stat(absolute)
    except OSError as error:
        what = (
            "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be reached ({error.strerror})"
        )
        return (
            f"{where}{shown} {what} on this node; copy it here, mount what it lies on, or give a source that "
            "llmgw fetches (https://…)"
        )
    return None
