"""Small files below a root that is a parameter: bounded reads, in which a missing file is an ordinary value."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

# The kernel writes at most one page per attribute.
FILE_BYTES_MAX = 4096
ENTRIES_MAX = 1024


def read_text(path: Path) -> str | None:
    """The stripped text of a file, or None when it is missing, empty, unreadable or no regular file."""
    try:
        # Never blocks: a FIFO in a saved tree would otherwise wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = os.read(descriptor, FILE_BYTES_MAX)
    except OSError:
        # Drivers answer reads with EINVAL, EIO or ENODEV (an unused GID, a card that is gone).
        return None
    finally:
        os.close(descriptor)
    return data.decode("utf-8", "replace").replace("\0", "").strip() or None


def list_names(path: Path) -> list[str]:
    """The names in a folder in natural order (`mlx5_2` before `mlx5_10`); empty when it cannot be read."""
    try:
        names = os.listdir(path)
    except OSError:
        return []
    return sorted(names, key=natural_key)[:ENTRIES_MAX]


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key under which numbers inside names count as numbers."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts)
