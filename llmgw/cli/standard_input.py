"""Standard input as `-` reads it, and standard streams that a daemon or a shell (`<&-`) has closed."""

from __future__ import annotations

import os
import sys

from llmgw.config.errors import SentenceError


def open_standard_streams() -> None:
    """Give closed standard streams the null device, before a file or a socket gets their descriptors.

    Python leaves `sys.stdin` (`stdout`, `stderr`) None for a closed one.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor, which is the closed one.
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, mode, encoding="utf-8", closefd=False))


def read_standard_input(bytes_max: int) -> bytes:
    """All of it, but not more than one byte over `bytes_max`. Raises SentenceError.

    Not by the path /dev/stdin, which opens no socket and no terminal of another user.
    """
    try:
        return sys.stdin.buffer.read(bytes_max + 1)
    except OSError as error:
        raise SentenceError(
            f"standard input cannot be read: {error.strerror}; pipe the text into the command, or name a file"
        ) from None
