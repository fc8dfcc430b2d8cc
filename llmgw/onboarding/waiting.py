"""Waits until the control plane says that a node is there, and says why when it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from llmgw.config.errors import SentenceError
from llmgw.messages.admin import NodeView

ASK_EVERY_S = 1.0
LOOK_AT_UNIT_EVERY = 5
"""Every so many questions the unit's state is looked at too: an agent that cannot start is not waited for."""
_AGE_SLACK_S = 0.2
"""Ages are told in tenths of a second."""


class ControlPlane(Protocol):
    """What is asked of the control plane."""

    def node(self, node_id: str) -> NodeView | None:
        """What it knows of a node; None when it knows none of that name. Raises SentenceError."""
        ...

    def removed_at(self, node_id: str) -> float | None:
        """When a node of that name was removed last, in epoch seconds; None: none was. Raises SentenceError."""
        ...


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds that only grow, and waiting for them to."""

    now: Callable[[], float]
    sleep: Callable[[float], None]


def wait_until_there(
    control: ControlPlane,
    node_id: str,
    *,
    since: float | None,
    timeout_s: float,
    clock: Clock,
    unit_state: Callable[[], str],
) -> str | None:
    """Return None as soon as the node is there, else a sentence with the control plane's reason.

    `since` (on `clock`) is when the agent was started: an older registration is its predecessor's. None: whatever
    registration there is counts. `unit_state` is systemd's word for the agent's unit; `failed` ends the waiting.
    """
    deadline = clock.now() + timeout_s
    asked = 0
    state = ""
    while True:
        try:
            view = control.node(node_id)
            reason = _why_not(view, node_id, None if since is None else clock.now() - since)
        except SentenceError as error:
            reason = f"the control plane does not answer: {error}"
        if reason is None:
            return None
        asked += 1
        if asked % LOOK_AT_UNIT_EVERY == 0:
            state = unit_state()
        if state == "failed":
            return f"The agent of {node_id} does not stay up (systemd says: failed); {reason}."
        if clock.now() >= deadline:
            unit = f" (systemd says of its agent: {state})" if state else ""
            return f"{node_id} is not there after {timeout_s:g} s{unit}: {reason}."
        clock.sleep(ASK_EVERY_S)


def _why_not(view: NodeView | None, node_id: str, since_start_s: float | None) -> str | None:
    """Why the node does not count as there; None when it does."""
    if view is None:
        return f"the control plane knows no node {node_id}, so no agent of that name has reached it"
    clones = [finding.what for finding in view.findings if finding.check == "cloned-machine"]
    if view.state == "ready":
        newer = view.registered_s is None or since_start_s is None
        if newer or (view.registered_s or 0.0) <= (since_start_s or 0.0) + _AGE_SLACK_S:
            return None
    if clones:
        return f"the control plane refuses this machine: {clones[0].rstrip('.')}"
    if view.state != "ready":
        return f"the control plane says that it is {view.state}" + (f": {view.reason}" if view.reason else "")
    return "the control plane has heard nothing of the agent that was just started, only of the one before it"
