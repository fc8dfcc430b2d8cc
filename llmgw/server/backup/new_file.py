"""A file that gets its name only when it is whole, readable by its owner alone, and replaces nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from llmgw.pki.files import sync_folder
from llmgw.server.backup.errors import BackupError, cannot_make


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Write into it; after the block it stands at `path` (0600), synced. Whatever goes wrong, nothing does.

    Without a name until then (O_TMPFILE, open(2)), so that a kill leaves nothing. Raises BackupError.
    """
    if os.path.lexists(path):
        raise _there_already(path)
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise cannot_make(error, path) from error
    try:
        with _opened(path) as (file, name):
            yield file
            file.flush()
            os.fsync(file.fileno())
            # With a descriptor of the folder Python calls linkat(2), which alone follows the link.
            os.link(name or f"/proc/self/fd/{file.fileno()}", path.name, dst_dir_fd=folder, follow_symlinks=True)
        sync_folder(path.parent)
    except FileExistsError:
        raise _there_already(path) from None
    except OSError as error:
        raise cannot_make(error, path) from error
    finally:
        os.close(folder)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, str | None]]:
    try:
        descriptor = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    else:
        with os.fdopen(descriptor, "w+b") as file:
            os.fchmod(file.fileno(), 0o600)
            yield file, None
        return
    # A file system without nameless files, such as NFS: a kill leaves this name, and the next run takes it over.
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file, str(partial)
    finally:
        partial.unlink(missing_ok=True)


def _there_already(path: Path) -> BackupError:
    return BackupError(f"{path} is there already, and a backup replaces nothing; name a new file")
