"""What a process tells systemd of itself: ready, alive, and how it is (sd_notify(3), without its library).

A datagram to the socket that NOTIFY_SOCKET names. Where there is none, everything here does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger(__name__)

STATUS_CHARS_MAX = 400
# Whoever says it once must be heard; systemd empties its socket in no time, unless the machine is in trouble.
_PATIENCE_S = 1.0


class Notifier:
    """Speaks to whoever started this process. `address` None: to nobody.

    `watchdog_s`: it wants a sign of life at least that often, and ends a process that gives none (None: it
    does not).
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._status = ""
        self._ready = False

    @property
    def supervised(self) -> bool:
        """True when somebody listens."""
        return self._address is not None

    @property
    def feed_interval_s(self) -> float | None:
        """How often `feed` gives a sign of life: twice in the time, as sd_watchdog_enabled(3) advises."""
        return None if self._watchdog_s is None else self._watchdog_s / 2

    def ready(self, status: str = "") -> None:
        """The start is over, or a reload; only the first is told, until `reloading`."""
        if self._ready:
            if status:
                self.status(status)
            return
        self._ready = True
        self._tell("READY=1", *self._of(status), patience_s=_PATIENCE_S)

    def reloading(self) -> None:
        """The configuration is being read again; `ready` ends it."""
        self._ready = False
        # Type=notify-reload wants to know when it began, on its own clock.
        stamp = f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
        self._tell("RELOADING=1", stamp, patience_s=_PATIENCE_S)

    def status(self, sentence: str) -> None:
        """How things are, for `systemctl status`; the same twice is told once."""
        if sentence != self._status:
            self._tell(*self._of(sentence))

    def stopping(self, status: str = "") -> None:
        """The end has begun."""
        self._tell("STOPPING=1", *self._of(status), patience_s=_PATIENCE_S)

    async def feed(self) -> None:
        """Signs of life from the running loop until cancelled: a loop that hangs gives none.

        Returns at once where none are wanted.
        """
        interval_s = self.feed_interval_s
        if interval_s is None:
            return
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(interval_s)

    def _of(self, status: str) -> list[str]:
        self._status = status or self._status
        # One line: a newline would begin another field.
        return [f"STATUS={' '.join(status.split())[:STATUS_CHARS_MAX]}"] if status else []

    def _tell(self, *fields: str, patience_s: float = 0.0) -> None:
        if self._address is None:
            return
        # A name that begins with @ is of the abstract namespace, which the kernel marks by a zero (unix(7)).
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(patience_s)
                sock.sendto("\n".join(fields).encode("utf-8", "replace"), address)
        except OSError as error:
            log.warning("systemd is not told %s: %s", fields[0], error)


def take_notifier(environ: MutableMapping[str, str] | None = None, pid: int | None = None) -> Notifier:
    """The notifier of this process, taken out of its environment, so that no child speaks for it.

    `environ` and `pid` default to this process's own. Where a watchdog is on, a process that it ends says where
    it hung: SIGABRT prints every thread's stack.
    """
    environ = os.environ if environ is None else environ
    address = environ.pop("NOTIFY_SOCKET", "")
    interval_us, watched = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    if not address.startswith(("/", "@")):
        return Notifier()
    watchdog_s = None
    # Without a pid it is meant for whoever reads it (sd_watchdog_enabled(3)).
    ours = watched in ("", str(os.getpid() if pid is None else pid))
    if ours and interval_us.isdecimal() and int(interval_us) > 0:
        watchdog_s = int(interval_us) / 1_000_000
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            faulthandler.enable()
    return Notifier(address, watchdog_s)
