"""Whether a TCP port of this machine is free: a fact of the kernel, asked by binding to it."""

from __future__ import annotations

import errno
import socket


def is_free(address: str, port: int) -> bool:
    """True when a listener could bind there now. Raises OSError when the address is not this host's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            # Without SO_REUSEADDR, so that ports with connections in TIME_WAIT are left alone too.
            probe.bind((address, port))
        except OSError as exc:
            if exc.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
