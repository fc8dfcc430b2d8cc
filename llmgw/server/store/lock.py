"""One server a state folder: a lock that the kernel lets go of when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from llmgw.server.store.errors import StoreError, explain

LOCK_NAME = "lock"


class StateLock:
    """Holds `<state>/lock` from construction until `release`.

    The lock belongs to the open file (flock(2)). The descriptor is closed on exec, so that routers and other
    children that outlive this process do not keep it.
    """

    def __init__(self, state: Path) -> None:
        """Make the folder (0700) when it is not there, and take the lock.

        Raises StoreError when another server holds it, naming its process, and when folder or file cannot be
        made.
        """
        self.path = state / LOCK_NAME
        try:
            if not state.is_dir():
                state.mkdir(mode=0o700, parents=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise explain(error, self.path) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            os.close(self._descriptor)
            raise StoreError(
                f"another llmgw server ({holder}) uses the state folder {state}",
                "stop that one first, or give this one a state folder of its own",
            ) from None
        except OSError as error:
            os.close(self._descriptor)
            raise explain(error, self.path) from error
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(self._descriptor)
            raise explain(error, self.path) from error

    def _holder(self) -> str:
        pid = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
        return f"process {pid}" if pid.isdigit() else "its process is not known"

    def release(self) -> None:
        """Let go. The file stays: removing it would let two servers lock two different files."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
