"""The agent's link to the server: whether it holds, and how often it failed."""

from __future__ import annotations

from collections.abc import Callable

from llmgw.metrics.family import Family

_NODE = ("node",)

CONNECTED = Family("llmgw_agent_connected", "gauge", "1 while the agent has a session with its server", _NODE)
ANSWER_AGE = Family(
    "llmgw_agent_answer_age_seconds",
    "gauge",
    "Since the server last answered as it should, 25 s of a poll included; absent before the first answer",
    _NODE,
)
FAILURES = Family(
    "llmgw_agent_call_failures_total",
    "counter",
    "Calls to the server that failed, or were refused, since the agent started",
    _NODE,
)
FAMILIES = (CONNECTED, ANSWER_AGE, FAILURES)


class Link:
    """Told after each call how it went. `now` is the monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._answered_at: float | None = None
        self._failures = 0

    def contact(self, trouble: str | None) -> None:
        """The server answered well (None), or this was the trouble."""
        if trouble is None:
            self._answered_at = self._now()
        else:
            self._failures += 1

    def text(self, node_id: str, *, connected: bool) -> str:
        """Every family."""
        at = (node_id,)
        age = None if self._answered_at is None else self._now() - self._answered_at
        return (
            CONNECTED.text([(at, int(connected))])
            + ANSWER_AGE.text([(at, age)])
            + FAILURES.text([(at, self._failures)])
        )
