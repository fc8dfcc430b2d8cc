"""What a process ends with whose configuration is wrong: under systemd a code that its unit does not restart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

from llmgw.config.errors import ConfigError

EXIT_CONFIG: Final = 78
"""EX_CONFIG of sysexits.h; RestartPreventExitStatus= of the units names it."""


@contextlib.contextmanager
def reading_configuration(environ: Mapping[str, str]) -> Iterator[None]:
    """A ConfigError from within ends a unit's process with EXIT_CONFIG: another try would read the same file."""
    try:
        yield
    except ConfigError as error:
        if environ.get("NOTIFY_SOCKET"):
            error.exit_code = EXIT_CONFIG
        raise
