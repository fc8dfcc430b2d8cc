"""What goes wrong with a backup, as a sentence."""

from __future__ import annotations

from pathlib import Path

from llmgw.config.errors import SentenceError
from llmgw.server.store.errors import explain


class BackupError(SentenceError):
    """A backup could not be made, read or put back: what happened, where, and what to do."""


def cannot_write(error: OSError, path: Path) -> BackupError:
    """`path` cannot be written: no room, no right, no folder."""
    if isinstance(error, FileNotFoundError):
        return BackupError(f"there is no folder {path.parent}; make it, or name another file")
    return BackupError(str(explain(error, path)))
