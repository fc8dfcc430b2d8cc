"""Keeps a long wait alive over restarts of the server: asks again while it is away, and says so once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from llmgw.cli.ctl.failures import AwayError, RefusedError
from llmgw.cli.ctl.options import note
from llmgw.config.errors import SentenceError

PAUSE_S_MIN, PAUSE_S_MAX = 0.25, 5.0
AWAY_S_MAX = 600.0


class Patience:
    """Asks until there is an answer, for at most `AWAY_S_MAX` of absence at a time."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep

    def ask(self, request: Callable[[], Any], settling: Callable[[], bool]) -> Any:
        """The answer to `request`.

        A 404 is believed only when `settling` says False: a server that has just started does not know its
        fleet yet. Raises what the server refused, or the failure when it stayed away for too long.
        """
        away_since: float | None = None
        settled = False
        pause_s = PAUSE_S_MIN
        while True:
            try:
                answer = request()
            except SentenceError as error:
                if not _may_pass(error) or (settled and _is_unknown(error)):
                    raise
                if _is_unknown(error) and not self._settling(settling):
                    settled = True  # perhaps only since the answer: asked once more, at once
                    continue
                settled = False
                now = self._clock()
                if away_since is None:
                    away_since = now
                    note(f"{error}; waiting")
                if now - away_since > AWAY_S_MAX:
                    raise
            else:
                if away_since is not None:
                    note("the server answers again")
                return answer
            self._sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, pause_s * 2)

    @staticmethod
    def _settling(settling: Callable[[], bool]) -> bool:
        try:
            return settling()
        except AwayError:
            return True


def _is_unknown(error: SentenceError) -> bool:
    return isinstance(error, RefusedError) and error.status == 404


def _may_pass(error: SentenceError) -> bool:
    """Whether asking again can help."""
    return isinstance(error, AwayError) or (isinstance(error, RefusedError) and error.status in (404, 429))
