"""The terminal under `llmgw ctl top`: its other screen, keys, signals; and the asking, beside it.

Whatever ends it, the terminal is as it was before. A server that hangs holds up no key.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from llmgw.cli.ctl.failures import AwayError, RefusedError
from llmgw.cli.ctl.top_facts import Facts
from llmgw.cli.ctl.top_frame import frame
from llmgw.config.errors import SentenceError

KEYS = "q ends it"
ASKED_SHARE = 4
"""The asking itself takes a fifth of the time at most, however large the fleet is."""
_REDRAW_S = 1.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Asker:
    """Asks again and again in a thread of its own, and wakes who waits for it through a pipe."""

    def __init__(self, ask: Callable[[], Facts], interval_s: float, wake: Callable[[], None]) -> None:
        self.facts: Facts | None = None
        self.away: str | None = None
        self.failed: BaseException | None = None
        """What asking again cannot mend."""
        self._ask, self._interval_s, self._wake = ask, interval_s, wake
        self._now = threading.Event()
        threading.Thread(target=self._run, name="asks", daemon=True).start()

    def at_once(self) -> None:
        """Do not wait for the interval's end."""
        self._now.set()

    def _run(self) -> None:
        while self.failed is None:
            began = time.monotonic()
            try:
                self.facts, self.away = self._ask(), None
            except SentenceError as error:
                if isinstance(error, AwayError) or (isinstance(error, RefusedError) and error.status == 429):
                    self.away = str(error)
                else:
                    self.failed = error
            except Exception as error:  # told by whoever waits, as any defect of a command is
                self.failed = error
            self._wake()
            self._now.wait(max(self._interval_s, ASKED_SHARE * (time.monotonic() - began)))
            self._now.clear()


def watch(ask: Callable[[], Facts], url: str, interval_s: float, console: Console) -> None:
    """Draw until `q`, Ctrl-C, SIGTERM or SIGHUP. Raises what `ask` raises, but AwayError, with the terminal
    restored."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ended = False

    def wake() -> None:
        with contextlib.suppress(OSError):  # full: it is awake already
            os.write(writer, b".")

    def end(number: int, at: FrameType | None) -> None:
        nonlocal ended
        ended = True
        wake()

    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    live = Live(console=console, screen=True, auto_refresh=False)
    with _signals(dict.fromkeys(_ENDING, end) | {signal.SIGWINCH: lambda number, at: wake()}):
        asker = _Asker(ask, interval_s, wake)
        with _raw(keys), live, _suspended(live, keys, wake):
            while not ended and asker.failed is None:
                live.update(_drawn(asker, url, console), refresh=True)
                ready, _, _ = select.select([reader, *([keys] if keys is not None else [])], [], [], _REDRAW_S)
                if reader in ready:
                    os.read(reader, 4096)
                if keys in ready:
                    typed = os.read(keys, 256)
                    ended = ended or not typed or bool(set(typed) & set(b"qQ\x03\x04"))
                    if set(typed) & set(b" \rr"):
                        asker.at_once()
    if asker.failed is not None:
        raise asker.failed


def _drawn(asker: _Asker, url: str, console: Console) -> Group:
    width, height = console.size
    ascii_only = console.options.ascii_only
    if asker.facts is None and asker.away is None:
        return Group(f"asking {url} …")
    lines = frame(
        asker.facts, url, width, height, away=asker.away, keys=KEYS, ascii_only=ascii_only, now=time.time()
    )
    return Group(*lines)


@contextlib.contextmanager
def _signals(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _raw(keys: int | None) -> Iterator[None]:
    """Keys come one by one and are not shown. Ctrl-C and Ctrl-Z stay signals."""
    if keys is None:
        yield
        return
    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _suspended(live: Live, keys: int | None, wake: Callable[[], None]) -> Iterator[None]:
    """Ctrl-Z gives the terminal back as it was, and `fg` takes it again."""

    def stop(number: int, at: FrameType | None) -> None:
        console = live.console
        before = termios.tcgetattr(keys) if keys is not None else None
        console.set_alt_screen(False)
        console.show_cursor(True)
        if keys is not None and before is not None:
            termios.tcsetattr(
                keys, termios.TCSADRAIN, [*before[:3], before[3] | termios.ECHO | termios.ICANON, *before[4:]]
            )
        os.kill(os.getpid(), signal.SIGSTOP)
        if keys is not None and before is not None:
            tty.setcbreak(keys)
        console.set_alt_screen(True)
        console.show_cursor(False)
        wake()

    with _signals({signal.SIGTSTP: stop}):
        yield
