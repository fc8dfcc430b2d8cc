"""Puts a backup back: everything is checked first, what is replaced is kept, and the swap is one rename."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from llmgw.pki.files import sync_folder, write_atomic
from llmgw.server.backup.audit_kept import keep_audit
from llmgw.server.backup.authority_folder import put_back, unpacked
from llmgw.server.backup.errors import BackupError, cannot_write
from llmgw.server.backup.manifest import AUTHORITY, REVOKED, Manifest, moment, stamp
from llmgw.server.backup.read import Contents, read_backup
from llmgw.server.backup.sealed import unseal
from llmgw.server.backup.since import Since, compare, keep_revoked
from llmgw.server.store import sqlite_file
from llmgw.server.store.errors import StoreError
from llmgw.server.store.lock import StateLock
from llmgw.server.store.store import DATABASE_NAME

_WAITING = "restore-partial.db"
_BESIDE = ("", "-wal", "-shm")


@dataclass(frozen=True)
class Destination:
    """Where a backup goes. `revocations` is put there only where no list is; `pki` only when it was asked for."""

    state: Path
    revocations: Path | None = None
    pki: Path | None = None


@dataclass
class Restored:
    """What was done."""

    kept_in: Path | None = None
    """The folder with what was replaced; None: there was nothing."""
    authority_kept_in: Path | None = None
    revocations: Path | None = None
    """The list that was put back, where there was none."""
    warnings: list[str] = field(default_factory=list)


class Restoring:
    """A backup that was verified, ready to be put back. The state folder is locked meanwhile."""

    def __init__(self, to: Destination, contents: Contents, authority: dict[str, bytes] | None) -> None:
        self.manifest: Manifest = contents.manifest
        self._to = to
        self._contents = contents
        self._authority = authority
        self._waiting = to.state / _WAITING
        self._database = to.state / DATABASE_NAME
        self.unreadable: str | None = None
        """Why what is there now cannot be read, as half a sentence; what was revoked since is not known then."""
        self.since = self._compare()

    def carry_out(self, now: float) -> Restored:
        """Put it back. `now` (seconds since the epoch) names what is kept. Raises BackupError."""
        done = Restored()
        try:
            readable = self._database.exists() and self.unreadable is None
            if readable:
                keep_revoked(self._database, self._waiting, now)
            said = f"the state as of {moment(self.manifest.made_at)} was put back"
            keep_audit(self._database if readable else None, self._waiting, said, now)
            self._settle(self._waiting)
            if self._authority is not None and self._to.pki is not None:
                kept = self._to.pki.with_name(f"{self._to.pki.name}.replaced-{stamp(now)}")
                if put_back(self._authority, self._to.pki, kept):
                    done.authority_kept_in = kept
            if self._database.exists():
                done.kept_in = self._keep(now)
            os.replace(self._waiting, self._database)
            sync_folder(self._to.state)
            self._put_list(done)
        except OSError as error:
            raise cannot_write(error, self._database) from error
        except sqlite3.Error as error:
            raise BackupError(f"{self._waiting} could not be prepared: {error}; nothing was replaced") from error
        return done

    def _compare(self) -> Since:
        if not self._database.exists():
            return Since()
        try:
            sqlite_file.check(self._database)
            return compare(self._database, self._waiting)
        except (StoreError, sqlite3.Error) as error:
            self.unreadable = error.what if isinstance(error, StoreError) else str(error)
            return Since()

    def _settle(self, database: Path) -> None:
        """Everything in the one file, owned by whom the folder belongs to."""
        with closing(sqlite_file.connect(database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        for suffix in _BESIDE[1:]:
            database.with_name(database.name + suffix).unlink(missing_ok=True)
        _give(database, self._to.state)
        descriptor = os.open(database, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _keep(self, now: float) -> Path:
        """Link what is there into a folder of its own. A log that stayed would be played into the new file."""
        if self.unreadable is None:
            with closing(sqlite_file.connect(self._database)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        folder = self._to.state / f"replaced-{stamp(now)}"
        folder.mkdir(mode=0o700)
        for suffix in _BESIDE:
            path = self._database.with_name(self._database.name + suffix)
            if path.exists():
                os.link(path, folder / path.name)
        sync_folder(folder)
        _give(folder, self._to.state)
        for suffix in _BESIDE[1:]:
            self._database.with_name(self._database.name + suffix).unlink(missing_ok=True)
        return folder

    def _put_list(self, done: Restored) -> None:
        path, data = self._to.revocations, self._contents.small.get(REVOKED)
        if path is None or data is None or path.exists():
            return  # an older list in the place of a newer one would let revoked nodes in again
        try:
            write_atomic(path, data, 0o644)
        except OSError as error:
            done.warnings.append(
                f"the revocation list could not be put to {path} ({error.strerror}); copy revoked.pem there from "
                "the authority's folder. What it revoked is in the database too, and stays refused"
            )
        else:
            done.revocations = path


@contextmanager
def restoring(file: Path, to: Destination, *, passphrase: str = "") -> Iterator[Restoring]:
    """Lock the state folder and verify the backup; what is not put back by the block is gone after it.

    Raises BackupError, and StoreError when a server runs on that folder.
    """
    lock = StateLock(to.state)
    waiting = to.state / _WAITING
    try:
        _give(lock.path, to.state)
        # A killed run's log would be played into the new file.
        _remove(waiting)
        contents = read_backup(file, waiting)
        authority = None
        if to.pki is not None:
            if AUTHORITY not in contents.small:
                raise BackupError(
                    f"{file} holds no authority; it was made without --authority. Leave it out here too"
                )
            authority = unpacked(unseal(contents.small[AUTHORITY], passphrase))
        yield Restoring(to, contents, authority)
    finally:
        _remove(waiting)
        lock.release()


def _remove(database: Path) -> None:
    for suffix in _BESIDE:
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _give(path: Path, like: Path) -> None:
    """The owner of the folder owns what is made in it, whoever made it."""
    owner = like.stat()
    if (owner.st_uid, owner.st_gid) != (path.stat().st_uid, path.stat().st_gid):
        os.chown(path, owner.st_uid, owner.st_gid)
