"""Unix sockets at paths of any length: an address holds 107 bytes (unix(7)), a folder's path may be longer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOCKET_PATH_BYTES_MAX = 107


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """What to bind or connect to while the block lasts: the path itself, or one by its folder's descriptor.

    Raises OSError when the folder cannot be opened.
    """
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
