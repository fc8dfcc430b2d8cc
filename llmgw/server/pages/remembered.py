"""The control plane as pages draw it: the views of a whole fleet are made once for all who look at the same time.

At 400 nodes they take a tenth of a second of the event loop, and every open page asks on the same news.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from llmgw.server.admin.backend import AdminBackend

VIEWS = frozenset({"server", "nodes", "replicas", "models"})
VIEWS_S_MAX = 1.0
"""For a server that people look at: figures on a page are at most that old; what happens is on it at once."""


def remembered(
    backend: AdminBackend, views_s: float, clock: Callable[[], float] = time.monotonic
) -> AdminBackend:
    """`backend`, whose `VIEWS` are kept for `views_s` while nothing happens. `clock` never runs backwards.

    What they answer is shared: nobody may change it.
    """
    return cast(AdminBackend, _Remembered(backend, views_s, clock))


class _Remembered:
    def __init__(self, backend: AdminBackend, views_s: float, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._views_s = views_s
        self._clock = clock
        self._kept: dict[str, tuple[int, float, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._backend, name)
        return (lambda: self._view(name, asked)) if name in VIEWS else asked

    def _view(self, name: str, ask: Callable[[], Any]) -> Any:
        happened, now = self._backend.news.happened, self._clock()
        kept = self._kept.get(name)
        if kept is None or kept[0] != happened or now - kept[1] >= self._views_s:
            kept = self._kept[name] = (happened, now, ask())
        return kept[2]
