"""What goes wrong with a backup, as a sentence."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from llmgw.config.errors import SentenceError
from llmgw.server.store.errors import StoreError, explain


class BackupError(SentenceError):
    """A backup could not be made, read or put back: what happened, where, and what to do."""


def cannot_write(error: OSError, path: Path) -> BackupError:
    """`path`, of the state, cannot be written: no room, no right, no folder."""
    if isinstance(error, FileNotFoundError):
        return BackupError(f"there is no folder {path.parent}; make it, or name another file")
    return BackupError(str(explain(error, path)))


def cannot_make(error: OSError | StoreError, path: Path) -> BackupError:
    """The file that is asked for cannot be made. Where the state lies has nothing to do with it."""
    if isinstance(error, StoreError):
        return BackupError(str(error))
    folder = path.parent
    match error.errno:
        case errno.ENOENT:
            return BackupError(f"there is no folder {folder}; make it, or name another file")
        case errno.ENOTDIR:
            return BackupError(f"{folder} is no folder; name another file")
        case errno.EACCES | errno.EPERM:
            return BackupError(
                f"user id {os.geteuid()} may not make files in {folder}; name a file in another folder"
            )
        case errno.EROFS:
            return BackupError(f"{folder} is mounted read-only; name a file in another folder")
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return BackupError(
                f"there is no space left for {path}; free space on {folder}, or name a file elsewhere"
            )
        case _:
            return BackupError(f"{path} cannot be made ({error.strerror or error}); name another file")
