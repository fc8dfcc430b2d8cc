"""Being asked to end while a VM is half made: the wish becomes an exception, and waits while the VM is "
"removed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final

from llmgw.onboarding.provision.errors import Ended

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP too: a lost ssh connection must not leave half a VM."""


@contextlib.contextmanager
def endings_raised() -> Iterator[None]:
    """Within: Ctrl-C, `kill` and a closed terminal raise Ended, once."""

    def raise_ended(number: int, _frame: FrameType | None) -> None:
        _ignore()
        raise Ended(number)

    before = {each: signal.getsignal(each) for each in _SIGNALS}
    for each in _SIGNALS:
        if before[each] is not signal.SIG_IGN:  # nohup stays nohup
            signal.signal(each, raise_ended)
    try:
        yield
    finally:
        for each in _SIGNALS:
            signal.signal(each, before[each])


@contextlib.contextmanager
def endings_held() -> Iterator[None]:
    """Within: those signals wait; one that came is answered at the end, as it would have been before."""
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    came: list[int] = []
    for each in _SIGNALS:
        if callable(before[each]):
            signal.signal(each, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for each in _SIGNALS:
            signal.signal(each, before[each])
    if came:
        signal.raise_signal(came[0])


@contextlib.contextmanager
def endings_ignored() -> Iterator[None]:
    """Within: those signals do nothing, as what runs must come to its end."""
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    _ignore()
    try:
        yield
    finally:
        for each in _SIGNALS:
            signal.signal(each, before[each])


def _ignore() -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
