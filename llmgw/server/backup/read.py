"""Reads a backup back: nothing is believed before every checksum was.

Also a copy of the database by itself, as a server makes one before it migrates (`llmgw.db.backup-…`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

import msgspec

from llmgw.server.backup.errors import BackupError, cannot_write
from llmgw.server.backup.manifest import (
    DATABASE,
    FORMAT,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    MEMBERS,
    SMALL_BYTES_MAX,
    Manifest,
    Member,
)
from llmgw.server.backup.snapshot import facts_of
from llmgw.server.store import sqlite_file
from llmgw.server.store.migrate import check_known

_SQLITE = b"SQLite format 3\x00"
_PIECE = 1024 * 1024
_OTHER = "take another backup"


@dataclass(frozen=True)
class Contents:
    """A backup that holds together. Its database was written to the path that `read_backup` was given."""

    manifest: Manifest
    small: dict[str, bytes]
    """The members that are not the database."""


def read_backup(file: Path, database: Path) -> Contents:
    """Verify a backup and write its database to `database` (0600), checked and of a schema that is known here.

    Raises BackupError or StoreError; `database` is gone then.
    """
    try:
        with file.open("rb") as source:
            magic = source.read(len(_SQLITE))
            source.seek(0)
            contents = (
                _read_copy(source, file, database) if magic == _SQLITE else _read_tar(source, file, database)
            )
        sqlite_file.check(database)
        check_known(database, str(file))
        return contents
    except BaseException as error:
        for suffix in ("", "-wal", "-shm"):
            database.with_name(database.name + suffix).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _os_failure(error, file, database) from error
        raise


def _read_copy(source: BinaryIO, file: Path, database: Path) -> Contents:
    with _create(database) as out:
        shutil.copyfileobj(source, out, _PIECE)
        size = out.tell()
        _sync(out)
    sqlite_file.check(database)
    with closing(sqlite_file.connect(database)) as connection:
        schema, revision, version = facts_of(connection, file)
    manifest = Manifest(
        llmgw=version,
        schema=schema,
        catalog_revision=revision,
        made_at=os.fstat(source.fileno()).st_mtime,
        files={DATABASE: Member(size, "")},
    )
    return Contents(manifest, {})


def _read_tar(source: BinaryIO, file: Path, database: Path) -> Contents:
    small: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=source, mode="r:") as tar:
            manifest = _manifest(tar, file)
            missing = set(manifest.files)
            while (entry := tar.next()) is not None:
                wanted = manifest.files.get(entry.name)
                data = tar.extractfile(entry) if entry.isreg() else None
                # A sparse member may say that it is larger than any disk, and no backup has one.
                if wanted is None or data is None or entry.issparse() or entry.name not in missing:
                    raise _strange(file)
                missing.discard(entry.name)
                if entry.name == DATABASE:
                    with _create(database) as out:
                        found = _copy(data, out)
                        _sync(out)
                elif entry.size > SMALL_BYTES_MAX:
                    raise _strange(file)
                else:
                    small[entry.name] = content = data.read()
                    found = Member(len(content), hashlib.sha256(content).hexdigest())
                if found != wanted:
                    raise BackupError(
                        f"{file} is damaged: {entry.name} in it is not what was written (its checksum differs); "
                        f"nothing was changed, {_OTHER}"
                    )
    except (tarfile.TarError, EOFError, ValueError, OverflowError):
        # Of numbers in headers that are none, tarfile lets some through as ValueError.
        raise BackupError(
            f"{file} is cut off, or no backup of `llmgw server backup`; nothing was changed, {_OTHER}"
        ) from None
    if missing:
        raise BackupError(f"{file} is cut off: it lacks {min(missing)}; nothing was changed, {_OTHER}")
    return Contents(manifest, small)


def _manifest(tar: tarfile.TarFile, file: Path) -> Manifest:
    first = tar.next()
    data = tar.extractfile(first) if first is not None and first.isreg() and first.name == MANIFEST else None
    if first is None or data is None or first.issparse() or first.size > MANIFEST_BYTES_MAX:
        raise BackupError(f"{file} is no backup of `llmgw server backup`; name the right file")
    raw = data.read()
    try:
        said = msgspec.json.decode(raw)
        if isinstance(said, dict) and isinstance(said.get("format"), int) and said["format"] > FORMAT:
            raise BackupError(
                f"{file} was made by a newer llmgw ({said.get('llmgw')}); install that version first, and "
                "restore with it"
            )
        manifest = msgspec.convert(said, Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BackupError(f"{file} is damaged: its manifest cannot be read; {_OTHER}") from None
    if DATABASE not in manifest.files or not set(manifest.files) <= set(MEMBERS):
        raise _strange(file)
    return manifest


def _copy(data: IO[bytes], out: BinaryIO) -> Member:
    digest, size = hashlib.sha256(), 0
    while piece := data.read(_PIECE):
        digest.update(piece)
        size += len(piece)
        out.write(piece)
    return Member(size, digest.hexdigest())


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _strange(file: Path) -> BackupError:
    return BackupError(f"{file} holds what no backup does; nothing was changed, {_OTHER}")


def _os_failure(error: OSError, file: Path, database: Path) -> BackupError:
    if error.filename == str(file):
        return BackupError(f"{file} cannot be read ({error.strerror}); name a backup of `llmgw server backup`")
    return cannot_write(error, database)
