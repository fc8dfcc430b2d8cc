"""What goes wrong with the store, as sentences: what happened, where, and what to do."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from llmgw.config.errors import SentenceError


class StoreError(SentenceError):
    """Something about the store that a person must know. `what` is a sentence, `remedy` what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


def explain(error: BaseException, path: Path) -> StoreError:
    """Turn an error of the operating system, SQLite or SQLAlchemy about `path` into a sentence.

    SQLAlchemy carries the driver's error as `orig`; Python 3.11 names SQLite's result code in
    `sqlite_errorname` (https://www.sqlite.org/rescode.html).
    """
    if isinstance(error, StoreError):
        return error
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, OSError):
        return _explain_os(cause, path)
    if isinstance(cause, sqlite3.Error):
        return _explain_sqlite(cause, path)
    text = " ".join(str(cause).split())[:300]
    return StoreError(f"the store {path} failed: {type(cause).__name__}: {text}", "see the server's log")


def _explain_os(error: OSError, path: Path) -> StoreError:
    where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else path
    user = f"user id {os.geteuid()}"
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return StoreError(
                f"{where} cannot be opened for writing by {user}",
                f"give it to that user (chown {os.geteuid()} {where}) or set state to another folder",
            )
        case errno.EROFS:
            return StoreError(
                f"{where} is on a file system that is mounted read-only",
                "mount it writable or set state to another folder",
            )
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return StoreError(f"there is no space left for {where}", f"free space on {path.parent}")
        case errno.ENOTDIR | errno.EEXIST:
            return StoreError(
                f"{where} is in the way: a folder is needed there and it is a file",
                "move it away or set state to another folder",
            )
        case errno.ENOLCK | errno.EOPNOTSUPP:
            return StoreError(
                f"{where} cannot be locked: its file system has no locks",
                "set state to a folder on a local disk",
            )
        case _:
            return StoreError(f"{where} failed: {error.strerror or error}", "mend it or set state elsewhere")


def _explain_sqlite(error: sqlite3.Error, path: Path) -> StoreError:
    name: str = getattr(error, "sqlite_errorname", None) or ""
    kind = name.removeprefix("SQLITE_").split("_")[0]
    match kind:
        case "FULL":
            return StoreError(f"there is no space left for {path}", f"free space on {path.parent}")
        case "IOERR":
            return StoreError(
                f"{path} cannot be read or written ({name})",
                f"check that the disk of {path.parent} works, has space, and allows files of this size",
            )
        case "READONLY" | "PERM" | "AUTH":
            return StoreError(
                f"{path} cannot be written by user id {os.geteuid()} ({name})",
                f"make {path}, its -wal and -shm files and {path.parent} writable for that user",
            )
        case "CANTOPEN":
            return StoreError(
                f"{path} cannot be opened ({name})",
                f"make {path} and {path.parent} readable and writable for user id {os.geteuid()}",
            )
        case "NOTADB":
            return not_a_database(path)
        case "CORRUPT":
            return damaged(path, str(error))
        case "BUSY" | "LOCKED":
            return StoreError(
                f"{path} is held by another program",
                "end whatever has it open (fuser names it), such as a backup or an sqlite3 shell",
            )
        case _:
            return StoreError(f"{path} failed: {error} ({name or type(error).__name__})", "see the server's log")


def not_a_database(path: Path) -> StoreError:
    """The file is something else."""
    return StoreError(
        f"{path} is not an SQLite database",
        "move it away (a new store is made then), restore a backup, or set state to another folder",
    )


def damaged(path: Path, detail: str) -> StoreError:
    """The file is a database with broken contents. `detail` is SQLite's own first line about it."""
    detail = " ".join(detail.split())[:200]
    return StoreError(
        f"{path} is damaged: {detail}",
        f"restore one of {path.name}.backup-* beside it, or save what can be read with "
        f"sqlite3 {path} .recover, and check the disk",
    )
