"""The control process itself: whether it settles, and whether it keeps up."""

from __future__ import annotations

from llmgw.metrics.family import Family
from llmgw.metrics.process import process_text
from llmgw.server.metrics.source import Source
from llmgw.server.transition_tally import EVENTS_MAX

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
TURN = Family(
    "llmgw_turn_seconds",
    "histogram",
    "One turn of the control plane: its decisions, carrying them out, and the routes that follow",
    (),
    "15",
)
RECONCILE = Family("llmgw_reconcile_seconds", "histogram", "One decision; a turn has one or more", (), "15")
PLACEMENT = Family(
    "llmgw_placement_seconds", "histogram", "Of these decisions, those that placed replicas", (), "15"
)
TRANSITIONS = Family(
    "llmgw_transitions_total",
    "counter",
    "What happened, by the words of llmgw ctl history: kind is node, replica, catalog, server, …",
    ("kind", "event"),
    f"{EVENTS_MAX}, some 50 in fact",
)
FAMILIES = (SETTLING, LOOP_PAUSE, LOOP_BUSY, TURN, RECONCILE, PLACEMENT, TRANSITIONS)


def control_text(source: Source) -> str:
    """The process's families."""
    pause = source.loop_pause()
    times = source.hub.turn_times
    return (
        process_text("server", source.started_at)
        + SETTLING.value(int(source.hub.fleet.settling))
        + LOOP_PAUSE.value(pause.late_s)
        + LOOP_BUSY.value(pause.busy_s)
        + TURN.histograms([((), times.turns)])
        + RECONCILE.histograms([((), times.decisions)])
        + PLACEMENT.histograms([((), times.placements)])
        + TRANSITIONS.text(sorted(source.hub.transitions.counts.items()))
    )
