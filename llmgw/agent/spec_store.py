"""Shards on disk: the whole spec, where it stands, and its processes, so that a later agent can adopt it."""

from __future__ import annotations

import os
import re
import shutil
import threading
from pathlib import Path

import msgspec

from llmgw.engines.base import HttpCheck
from llmgw.messages.agent import LIVE_PHASES, ShardPhase, ShardSpec
from llmgw.messages.secrets import shown_without

_SHARD_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}$")
_FILE = "shard.json"


class SavedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a shard: its name in the plan, and its identity."""

    name: str
    pid: int
    start_ticks: int


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that an agent knows of one shard. Times ending in `_boot_s` are CLOCK_BOOTTIME of boot `boot_id`.

    `failure` is why the shard is failing, kept while its processes are being ended. The environment is not
    kept: it may hold secrets. `api_key` is one, and must be: an adopted engine demands it for as long as it runs.
    """

    spec: ShardSpec
    boot_id: str
    phase: ShardPhase
    version: int = 1
    phase_since_boot_s: float = 0.0
    received_boot_s: float = 0.0
    started_boot_s: float | None = None
    ended_at_s: float | None = None
    """Wall clock, epoch seconds; only to tell which ended shard is older."""
    http_port: int | None = None
    rendezvous_port: int | None = None
    extra_ports: list[int] = []
    api_key: str | None = None
    reason: str | None = None
    failure: str | None = None
    exit_code: int | None = None
    output_tail: list[str] = []
    processes: list[SavedProcess] = []
    load: HttpCheck | None = None
    readiness: HttpCheck | None = None
    gpu_used_before_mib: dict[str, int] = {}
    """Memory in use on the shard's GPUs just before its processes were started, by UUID, where it was known."""
    carried_before: dict[str, int] = {}
    """Data counters of the node's adapters just before its processes were started, for a shard of several."""
    unreleased: list[str] = []
    """GPUs whose memory was still in use when the shard's end was reported."""
    warnings: list[str] = []
    """Sentences about how it runs, such as an argument of its profile that contradicts the agent's."""
    forgotten: bool = False
    serial: int = 0
    """Counts the changes of this record in memory, so that an older one never overwrites a newer on disk."""

    @property
    def live(self) -> bool:
        return self.phase in LIVE_PHASES

    @property
    def ports(self) -> set[int]:
        """Every port that it was given."""
        chosen = {self.http_port, self.rendezvous_port, *self.extra_ports}
        return {port for port in chosen if port is not None}

    def __repr__(self) -> str:
        return shown_without(self, "api_key")


def is_shard_id(text: str) -> bool:
    """True for ids that can name a folder."""
    return _SHARD_ID.match(text) is not None and ".." not in text


class SpecStore:
    """Records below `root`, one folder a shard. Its methods block and may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._saved: dict[str, int] = {}
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def folder(self, shard_id: str) -> Path:
        """The shard's own folder, where its processes run. The id must be one (`is_shard_id`)."""
        if not is_shard_id(shard_id):
            raise ValueError(f"{shard_id!r} is not a shard id")
        return self._root / shard_id

    def save(self, record: ShardRecord) -> None:
        """Write the record whole: either the old or the new one survives a crash. Raises OSError."""
        shard_id = record.spec.shard_id
        with self._lock:
            if record.serial < self._saved.get(shard_id, 0):
                return
            folder = self.folder(shard_id)
            folder.mkdir(mode=0o700, exist_ok=True)
            write_whole(folder / _FILE, msgspec.json.encode(record))
            self._saved[shard_id] = record.serial

    def load(self) -> tuple[list[ShardRecord], list[str]]:
        """(every record, sentences about those that cannot be read, which are set aside)."""
        records: list[ShardRecord] = []
        problems: list[str] = []
        for folder in sorted(self._root.iterdir()):
            path = folder / _FILE
            if not path.exists():
                continue
            try:
                record = msgspec.json.decode(path.read_bytes(), type=ShardRecord)
                if record.spec.shard_id != folder.name:
                    raise ValueError(f"it describes {record.spec.shard_id!r}")
            except (OSError, ValueError) as exc:
                aside = path.with_suffix(".unreadable")
                problems.append(f"{path} is not a shard's description ({exc}); it is now {aside.name}")
                try:
                    os.replace(path, aside)
                except OSError as error:
                    problems.append(f"{path} cannot be renamed: {error.strerror}")
                continue
            self._saved[record.spec.shard_id] = record.serial
            records.append(record)
        return records, problems

    def remove(self, shard_id: str) -> None:
        """Delete the shard's folder, output included."""
        with self._lock:
            shutil.rmtree(self.folder(shard_id), ignore_errors=True)
            self._saved.pop(shard_id, None)


def write_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file so that a crash leaves the old or the new content, never a part. Raises OSError."""
    beside = path.with_name(f".{path.name}.new")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)
        file.flush()
        os.fsync(fd)
    os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
