"""What goes on, on stderr: one line that is rewritten on a terminal, and lines now and then elsewhere."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

from llmgw.config.sizes import size_words

RATE_WINDOW_S: Final = 10.0
REWRITE_S: Final = 0.2
LINE_S: Final = 10.0
# What qemu-server prints while it copies a disk: "transferred 1.2 GiB of 3.0 GiB (40.00%)".
_TRANSFERRED: Final = re.compile(r"transferred ([\d.]+) ([KMGT]?i?B) of ([\d.]+) ([KMGT]?i?B)")
_UNITS: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def transferred(line: str) -> tuple[int, int] | None:
    """(bytes done, all bytes) of a line of `qm set … import-from=`; None for other lines."""
    found = _TRANSFERRED.search(line)
    if found is None or found[2] not in _UNITS or found[4] not in _UNITS:
        return None
    return int(float(found[1]) * _UNITS[found[2]]), int(float(found[3]) * _UNITS[found[4]])


class Progress:
    """`now_s` is a monotonic clock."""

    def __init__(self, out: TextIO, now_s: Callable[[], float]) -> None:
        self._out = out
        self._now_s = now_s
        self._terminal = out.isatty()
        self._width = 0
        self._what = ""
        self._told_at_s = float("-inf")
        self._points: deque[tuple[float, int]] = deque(maxlen=64)

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._clear()
        self._what = ""
        self._write(f"{sentence}\n")

    def bytes(self, what: str, done: int, total: int | None) -> None:
        """How far a copy is; called as often as there is something new."""
        now = self._now_s()
        self._begin(what)
        if not self._points or now - self._points[-1][0] >= RATE_WINDOW_S / 50:
            self._points.append((now, done))
        while len(self._points) > 2 and now - self._points[1][0] >= RATE_WINDOW_S:
            self._points.popleft()
        at, before = self._points[0]
        parts = [size_words(done) + (f" of {size_words(total)}" if total else "")]
        if total:
            parts.append(f"{100 * done // total} %")
        if now - at >= 1:
            parts.append(f"{size_words(int((done - before) / (now - at)))}/s")
        self._tell(f"{what}: {', '.join(parts)}", now, whole=total is not None and done >= total)

    def waiting(self, what: str, for_s: float) -> None:
        """Something that takes its time and says nothing."""
        self._begin(what)
        self._tell(f"{what} ({for_s:.0f} s)", self._now_s(), whole=False)

    def _begin(self, what: str) -> None:
        if what != self._what:
            self._clear()
            self._what, self._told_at_s = what, float("-inf")
            self._points.clear()

    def _tell(self, line: str, now: float, whole: bool) -> None:
        if self._terminal:
            if whole or now - self._told_at_s >= REWRITE_S:
                self._told_at_s = now
                self._write(f"\r{line.ljust(self._width)}")
                self._width = len(line)
        elif whole or now - self._told_at_s >= LINE_S:
            self._told_at_s = now
            self._write(f"{line}\n")

    def _clear(self) -> None:
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):
            pass  # a closed terminal must not keep a VM from being undone
