"""Gives the listening sockets to the control process, which keeps them for this router's replacement."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence

SOCKETS_MAX = 16
"""What the other end is ready to take."""


def hand_over(transport: asyncio.BaseTransport, data: bytes, listeners: Sequence[socket.socket]) -> int:
    """Write the first byte of `data` with the sockets (SCM_RIGHTS, unix(7)); how many bytes are written: 1 or 0.

    Only for a connection to which nothing was written yet. The event loop knows nothing of such messages; an end
    that does not ask for them reads the byte and gets no socket.
    """
    connection: socket.socket = transport.get_extra_info("socket")
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        try:
            return socket.send_fds(duplicate, [data[:1]], [sock.fileno() for sock in listeners[:SOCKETS_MAX]])
        except OSError:
            return 0
