"""The Unix socket that control processes dial: bound, kept at its path, and removed at the end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from llmgw.messages.socket_paths import short_path

log = logging.getLogger(__name__)

LOOK_S = 1.0


class ControlSocket:
    """A bound socket, 0600. Whoever makes one holds the router's lock: what lies at the path is a dead router's.

    Something may remove the file while the router lives (a cleaner of temporary files, a restored folder). A
    server that is connected notices nothing, and the next one would find no router for ever: so `keep` binds
    the path anew. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sock, self._file = _bind(path)
        self._server: asyncio.Server | None = None
        self._failed = False

    async def serve(self, accept: Callable[[], asyncio.Protocol]) -> None:
        """Take connections."""
        self._server = await asyncio.get_running_loop().create_unix_server(accept, sock=self._sock)

    async def keep(self, accept: Callable[[], asyncio.Protocol], *, look_s: float = LOOK_S) -> None:
        """Look for ever whether the path still leads here, and bind it anew when it does not."""
        while True:
            await asyncio.sleep(look_s)
            if _file_of(self._path) == self._file:
                continue
            try:
                fresh, file = _bind(self._path)
            except OSError as error:
                if not self._failed:
                    log.error("the control socket %s is gone and cannot be made: %s", self._path, error.strerror)
                self._failed = True
                continue
            log.warning("the control socket %s was removed or replaced; it is made anew", self._path)
            self._failed = False
            # Connections that were accepted through the old one go on.
            if self._server is not None:
                self._server.close()
            self._sock, self._file = fresh, file
            await self.serve(accept)

    def stop(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server.close()

    def close(self) -> None:
        """Close the socket and remove its file, unless the path leads elsewhere by now."""
        self._sock.close()
        if _file_of(self._path) == self._file:
            self._path.unlink(missing_ok=True)


def _bind(path: Path) -> tuple[socket.socket, tuple[int, int] | None]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        with short_path(path) as bindable:
            sock.bind(bindable)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock, _file_of(path)


def _file_of(path: Path) -> tuple[int, int] | None:
    """(device, inode) of what lies at the path; None when nothing does."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
