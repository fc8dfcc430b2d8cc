"""What lies in a node's weights folder, who refers to it, and its removal. Everything here blocks."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from llmgw.agent.weights.files import beside, fetched_record, part_record
from llmgw.config.sources import (
    FETCHED_RECORD_SUFFIX,
    PART_RECORD_SUFFIX,
    PART_SUFFIX,
    SourceError,
    read_source,
    split_files,
)
from llmgw.messages.agent import WEIGHTS_FILES_MAX, WeightsFile, WeightsListing

REFERENCES_MAX = 16
"""Sources, and shards, that are named with one file."""


def listing(root: Path, sources: Iterable[str], held: Mapping[str, str]) -> WeightsListing:
    """Everything below `root`. `sources` are the catalog's, `held` is shard id → its source. Raises OSError."""
    refer = References(root, sources, held)
    files: list[WeightsFile] = []
    left_out = 0
    for name, path in _walk(root):
        if len(files) >= WEIGHTS_FILES_MAX:
            left_out += 1
            continue
        with contextlib.suppress(OSError):
            files.append(_describe(name, path, refer))
    usage = shutil.disk_usage(_existing(root))
    return WeightsListing(
        dir=str(root), files=files, left_out=left_out, disk_bytes=usage.total, disk_free_bytes=usage.free
    )


def remove(
    root: Path, names: Sequence[str], sources: Iterable[str], held: Callable[[], Mapping[str, str]]
) -> tuple[list[str], dict[str, str]]:
    """Remove fetched files that nothing refers to: (those removed, name → why another one is kept)."""
    sources = list(sources)
    removed, kept = [], {}
    there = dict(_walk(root))
    for name in names:
        if name not in there:
            kept[name] = "it is not there any more"
            continue
        try:
            # Asked anew for each: removing a large file takes a while, and a shard may start meanwhile.
            found = _describe(name, there[name], References(root, sources, held()))
            why = _why_kept(found)
            if why is None:
                _unlink(root, there[name])
        except OSError as error:
            why = f"it cannot be removed: {error.strerror}"
        if why is None:
            removed.append(name)
        else:
            kept[name] = why
    return removed, kept


class References:
    """Who refers to a file, by URL or by path: `sources` of the catalog, and `held`, shard id → its source."""

    def __init__(self, root: Path, sources: Iterable[str], held: Mapping[str, str]) -> None:
        self._root = root
        self._sources = list(dict.fromkeys(sources))
        self._held = dict(held)
        self._by_name: dict[str, set[str]] = {}
        self._by_path: dict[str, set[str]] = {}
        for text in {*self._sources, *self._held.values()}:
            try:
                source = read_source(text)
            except SourceError:
                continue
            paths = split_files(text) if source.kind == "path" else []
            for file in source.files:
                self._by_name.setdefault(file.name, set()).add(text)
                paths += [file.local_path] if file.local_path is not None else []
            for path in paths:
                self._by_path.setdefault(os.path.realpath(path), set()).add(text)

    def of(self, name: str) -> tuple[list[str], list[str]]:
        """(sources, shard ids) that refer to the file of that name."""
        path = Path(os.path.realpath(self._root / name))
        texts = set(self._by_name.get(name, ()))
        # A path may name a folder of files.
        for place in (path, *path.parents):
            texts |= self._by_path.get(str(place), set())
        return (
            [text for text in self._sources if text in texts],
            [shard_id for shard_id, text in self._held.items() if text in texts],
        )


def _describe(name: str, path: Path, refer: References) -> WeightsFile:
    facts = path.stat()
    partial = name.endswith(PART_SUFFIX)
    whole = name.removesuffix(PART_SUFFIX) if partial else name
    target = path.with_name(path.name.removesuffix(PART_SUFFIX)) if partial else path
    total = None
    state: Literal["complete", "partial", "foreign"]
    if partial:
        part = part_record(target)
        total = part.total_bytes if part is not None else None
        # An agent that was ended in the moment of its beginning leaves an empty one without a record.
        state = "partial" if part is not None or not facts.st_size else "foreign"
    else:
        record = fetched_record(target)
        state = "complete" if record is not None and not record.by_hand else "foreign"
    by_sources, by_shards = refer.of(whole)
    return WeightsFile(
        name=name,
        size_bytes=facts.st_size,
        total_bytes=total,
        state=state,
        sources=by_sources[:REFERENCES_MAX],
        shards=by_shards[:REFERENCES_MAX],
    )


def _why_kept(found: WeightsFile) -> str | None:
    if found.state == "foreign":
        return "llmgw did not fetch it, so it is yours to remove"
    if found.shards:
        return f"shard {found.shards[0]} uses it"
    if found.sources:
        return "a model of the catalog refers to it"
    return None


def _walk(root: Path) -> list[tuple[str, Path]]:
    """(name below the root, path) of every file, but for the records beside them; links are not followed."""
    found = []
    for folder, folders, files in os.walk(root):
        folders.sort()
        for file in files:
            path = Path(folder) / file
            if not file.endswith((PART_RECORD_SUFFIX, FETCHED_RECORD_SUFFIX)):
                found.append((str(path.relative_to(root)), path))
    return sorted(found)


def _unlink(root: Path, path: Path) -> None:
    """Remove a file, the records beside it, and folders that are empty then."""
    path.unlink()
    if path.name.endswith(PART_SUFFIX):
        record = beside(path.with_name(path.name.removesuffix(PART_SUFFIX)), PART_RECORD_SUFFIX)
    else:
        record = beside(path, FETCHED_RECORD_SUFFIX)
    record.unlink(missing_ok=True)
    for folder in path.parents:
        if folder == root or root not in folder.parents:
            return
        try:
            folder.rmdir()
        except OSError:
            return


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
