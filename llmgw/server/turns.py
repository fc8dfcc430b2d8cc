"""Asks the core what is to be done and carries it out, for a bounded time: others wait for the event loop."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from llmgw.config.catalog import Catalog
from llmgw.fleet.actions import Action, StartReplica
from llmgw.fleet.carry_out import Effects, carry_out
from llmgw.fleet.model import Fleet
from llmgw.fleet.reconcile import NewId, reconcile
from llmgw.fleet.settings import FleetSettings
from llmgw.server.turn_times import TurnTimes

log = structlog.get_logger("hub")

ROUNDS_MAX = 200
"""Answers of reconcile until there is nothing to do. More is a decision that does not take: it is logged, and
tried again later."""
ACTIONS_AT_ONCE = 100
TURN_MAX_S = 0.1
"""A turn that takes longer ends early, after so many actions at a time."""


class Turns:
    """One hub's turns. `now` is its monotonic clock; `deliver` sends and keeps what follows from some actions."""

    def __init__(
        self, now: Callable[[], float], new_id: NewId, deliver: Callable[[Effects], None], times: TurnTimes
    ) -> None:
        self._now = now
        self._new_id = new_id
        self._deliver = deliver
        self._times = times
        self._rounds = 0

    def take(self, fleet: Fleet, catalog: Catalog, settings: FleetSettings) -> bool:
        """Decide and carry out. False when the time was over first.

        Nothing keeps what is left then: the next turn decides anew, on what is so by then.
        """
        begun = self._now()
        while actions := self._decide(fleet, catalog, settings, begun):
            for first in range(0, len(actions), ACTIONS_AT_ONCE):
                effects = Effects()
                for action in actions[first : first + ACTIONS_AT_ONCE]:
                    carry_out(fleet, catalog, action, begun, settings, effects)
                self._deliver(effects)
                in_time = self._now() - begun <= TURN_MAX_S
                if not in_time:
                    break
            self._rounds += 1
            if self._rounds >= ROUNDS_MAX:
                shown = [repr(action) for action in actions[:5]]
                log.error("reconcile does not come to an end", rounds=self._rounds, actions=shown)
                break
            if not in_time:
                return False
        self._rounds = 0
        return True

    def _decide(self, fleet: Fleet, catalog: Catalog, settings: FleetSettings, begun: float) -> list[Action]:
        asked = self._now()
        actions = reconcile(fleet, catalog, begun, settings, self._new_id)
        took_s = self._now() - asked
        self._times.decisions.add(took_s)
        if any(isinstance(action, StartReplica) for action in actions):
            self._times.placements.add(took_s)
        return actions
