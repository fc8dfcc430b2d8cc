"""The control process itself: whether it settles, and whether it keeps up."""

from __future__ import annotations

from llmgw.metrics.family import Family
from llmgw.metrics.process import process_text
from llmgw.server.metrics.source import Source

SETTLING = Family(
    "llmgw_settling",
    "gauge",
    "1 while a server that has just started waits for its nodes, places nothing and stops nothing",
)
LOOP_PAUSE = Family(
    "llmgw_loop_pause_seconds",
    "gauge",
    "The longest time of the last 15 to 30 s in which the server looked at nothing new; above 1 s agents notice",
)
LOOP_BUSY = Family(
    "llmgw_loop_busy_seconds",
    "gauge",
    "The longest that it computed meanwhile; where the other is much longer, the machine is overloaded",
)
FAMILIES = (SETTLING, LOOP_PAUSE, LOOP_BUSY)


def control_text(source: Source) -> str:
    """The process's families."""
    pause = source.loop_pause()
    return (
        process_text("server", source.started_at)
        + SETTLING.value(int(source.hub.fleet.settling))
        + LOOP_PAUSE.value(pause.late_s)
        + LOOP_BUSY.value(pause.busy_s)
    )
