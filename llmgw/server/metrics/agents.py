"""Agents' conversation with this server: who is in session, how long calls took, and what was refused."""

from __future__ import annotations

from llmgw.metrics.family import Family
from llmgw.server.call_tally import CALLS, CODES_MAX
from llmgw.server.metrics.source import Source

SESSIONS = Family("llmgw_agent_sessions", "gauge", "Agents that have a session with this server")
CALL = Family(
    "llmgw_agent_call_seconds",
    "histogram",
    "How long a call of an agent took, from its head to its answer; a poll waits up to 25 s for commands",
    ("call",),
    f"16 × {len(CALLS)} calls",
)
COMMAND = Family(
    "llmgw_agent_command_seconds",
    "histogram",
    "From a command's being queued for an agent to the agent's word that it was taken up",
    (),
    "16",
)
REFUSALS = Family(
    "llmgw_agent_refusals_total",
    "counter",
    "Calls of agents that were refused, by the refusal's code; session_over is part of every restart",
    ("code",),
    str(CODES_MAX),
)
FAMILIES = (SESSIONS, CALL, COMMAND, REFUSALS)


def agent_text(source: Source) -> str:
    """Every family about agents' calls."""
    calls = source.hub.calls
    return (
        SESSIONS.value(len(source.hub.sessions))
        + CALL.histograms(((call,), times) for call, times in calls.seconds.items())
        + COMMAND.histograms([((), calls.commands)])
        + REFUSALS.text(((code,), count) for code, count in sorted(calls.refusals.items()))
    )
