"""The roll: which node of an upgrade is asked next, when one counts as back, and when it goes no further. Pure.

One node at a time. What is seen of it comes in as `Sight`s, what is to be asked goes out as node ids; time is
seconds of a clock that stands still while this process does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from llmgw.messages.upgrade import LastUpgrade, UpgradeTold
from llmgw.messages.upgrade_views import GOOD, OVER, NodeUpgrade, UpgradeView

STALL_LIMIT_S = 240.0
"""An agent that prepares and says nothing for so long is given up: it tells how it is every few seconds, and
gives up by itself when no byte comes (150 s), or when installing takes too long."""
PREPARE_LIMIT_S = 3600.0
"""However much it says."""
STEADY_S = 10.0
"""A node counts as back when one process of the new program has been heard for so long with all engines: one that
registers and then ends, again and again, is not followed by the next node."""
ASKS_MAX = 10
"""An agent is asked again when it registers again before it has switched; one that keeps doing so is given up."""

Engine = tuple[Literal["ready", "other", "lost", "stopped"], int | None]
"""How a shard is, and its engine's process. `lost`: it failed; `stopped`: it was meant to end."""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What the control plane sees of one node now."""

    there: bool
    """Its agent has a session and is heard."""
    state: str
    """In words, for the sentence that says why it was skipped."""
    lost: bool = False
    session: str | None = None
    instance: str = ""
    """Of its agent's process."""
    version: str = ""
    can_upgrade: bool = False
    last_upgrade: LastUpgrade | None = None
    told: UpgradeTold | None = None
    """What its agent last said of this upgrade, since it was last asked."""
    engines: Mapping[str, Engine] = field(default_factory=dict)
    """Its shards that are ready, and those that were when its turn came."""


class Roll:
    """One upgrade under way. `view` is all that outlives this process."""

    def __init__(self, view: UpgradeView) -> None:
        self.view = view
        self._session: str | None = None
        """In which the node whose turn it is was asked."""
        self._instance = ""
        """The process that was asked."""
        self._asks = 0
        self._steady: tuple[str, float] | None = None
        """The process of the new program that is there with all engines, and since when."""
        self._began: float | None = None
        """When this process first looked at that node in its present state."""
        self._news_at = 0.0
        self._told: UpgradeTold | None = None

    @property
    def current(self) -> str | None:
        """The node whose turn it is; None when the roll is over."""
        at = self._at()
        return None if at is None else self.view.nodes[at].node

    def look(self, sights: Mapping[str, Sight], now: float) -> list[str]:
        """Go on as far as possible; the nodes whose agents are to be asked (at most one). `sights` lacks nodes
        that are not known any more.
        """
        while (at := self._at()) is not None:
            node = self.view.nodes[at]
            if node.state == "waiting" and self.view.cancelled_by is not None:
                self._end("cancelled", f"cancelled by {self.view.cancelled_by}")
                return []
            sight = sights.get(node.node)
            if sight is None:
                self._over(at, "skipped", "it was removed")
                continue
            if node.state == "waiting" and not self._begin(at, sight):
                continue
            asked = self._ask(at, sight, now)
            self._watch(at, sight, now)
            if self.view.nodes[at].state not in OVER:
                return [node.node] if asked else []
        if self.view.state == "running":
            self._end("done", "")
        return []

    def cancel(self, by: str) -> None:
        """Begin with no further node. One that has begun is let finish; of a roll that stopped, it is said
        that this is known."""
        if self.view.state == "running":
            self._change(cancelled_by=by)
        elif self.view.state == "stopped":
            self._change(state="cancelled", cancelled_by=by)

    def stop(self, reason: str) -> None:
        """It cannot go on for a reason of this server's own."""
        self._end("stopped", reason)

    # A node's turn.

    def _begin(self, at: int, sight: Sight) -> bool:
        """True when its agent is to be asked."""
        node = self.view.nodes[at]
        if not sight.there:
            self._over(at, "skipped", f"its agent was not there to be asked: {sight.state}")
        elif self._is_new(sight):
            self._over(at, "unchanged", "")
        elif not sight.can_upgrade:
            reason = (
                f"its agent, llmgw {sight.version or 'of an unknown version'}, cannot replace its own "
                f"program; use llmgw onboard-node --node {node.node}"
            )
            self._set(at, was=sight.version)
            self._over(at, "refused", reason, stops=False)
        else:
            engines = {shard: pid for shard, (state, pid) in sight.engines.items() if state == "ready"}
            self._set(at, state="preparing", was=sight.version, engines=engines)
            self._turn()
            return True
        return False

    def _turn(self) -> None:
        self._session, self._began, self._told = None, None, None
        self._instance, self._asks, self._steady = "", 0, None

    def _ask(self, at: int, sight: Sight, now: float) -> bool:
        """Whether the agent is to be asked now: once in each session, until it is the new one."""
        if self._began is None:
            self._began = self._news_at = now
        node = self.view.nodes[at]
        if node.state != "preparing" or not sight.there or sight.session in (None, self._session):
            return False
        if self._is_new(sight) or self._went_back(sight):
            return False
        self._session, self._instance, self._told, self._news_at = sight.session, sight.instance, None, now
        self._asks += 1
        return self._asks <= ASKS_MAX

    def _watch(self, at: int, sight: Sight, now: float) -> None:
        node = self.view.nodes[at]
        began = self._began if self._began is not None else now
        told = self._news(sight, now)
        if self._went_back(sight):
            why = sight.last_upgrade.reason if sight.last_upgrade is not None else ""
            self._over(at, "back", f"{node.node} went back to llmgw {sight.version} because {why}")
        elif self._is_new(sight):
            self._await_engines(at, sight, now)
        elif told is not None and told.stage == "refused":
            self._over(at, "refused", f"{node.node}: {told.sentence}")
        elif node.state == "preparing":
            self._await_switch(at, sight, told, now)
        elif sight.there and self._instance not in ("", sight.instance):
            reason = f"{node.node} came back as llmgw {sight.version}, without a word of the upgrade"
            self._over(at, "failed", reason)
        elif now - began > self.view.back_within_s:
            reason = (
                f"{node.node} was not back {self.view.back_within_s:.0f} s after it ended to become llmgw "
                f"{self.view.version} ({sight.state}); look at journalctl -u llmgw-agent there"
            )
            self._over(at, "failed", reason)

    def _news(self, sight: Sight, now: float) -> UpgradeTold | None:
        """What its agent says since the last look, when it says something."""
        told = sight.told if self._session is not None and sight.session == self._session else None
        if told is None or told is self._told:
            return None
        self._told, self._news_at = told, now
        return told

    def _await_switch(self, at: int, sight: Sight, told: UpgradeTold | None, now: float) -> None:
        node = self.view.nodes[at]
        if told is not None and told.stage == "already":
            self._over(at, "unchanged", "")
        elif told is not None and told.stage == "switching":
            self._set(at, state="restarting", stage="", done_bytes=None)
            self._began = now
        elif told is not None:
            if (told.stage, told.done_bytes) != (node.stage, node.done_bytes):
                self._set(at, stage=told.stage, done_bytes=told.done_bytes)
        elif sight.lost:
            self._over(at, "skipped", f"it was lost before it had switched: {sight.state}")
        elif self._asks > ASKS_MAX:
            reason = (
                f"{node.node} registered {ASKS_MAX} times anew before it had switched; look at its agent's log"
            )
            self._over(at, "failed", reason)
        elif now - self._news_at > STALL_LIMIT_S or now - (self._began or now) > PREPARE_LIMIT_S:
            last = f"its agent was {node.stage} last" if node.stage else "its agent did not answer"
            self._over(at, "failed", f"{node.node} did not get ready to switch ({sight.state}; {last})")

    def _await_engines(self, at: int, sight: Sight, now: float) -> None:
        """The new program runs there; it is over once the engines are as they were."""
        node = self.view.nodes[at]
        if node.state == "preparing":
            # Its last words before the switch were lost, or this server was not there to hear them.
            self._set(at, state="restarting", stage="", done_bytes=None)
            self._began = now
        missing = []
        for shard, pid in node.engines.items():
            state, here = sight.engines.get(shard, ("lost", None))
            if state == "stopped":
                continue
            if state == "lost":
                self._over(at, "failed", f"{node.node} is llmgw {sight.version}, and lost {shard} on the way")
                return
            if pid is not None and here is not None and here != pid:
                reason = (
                    f"{node.node} is llmgw {sight.version}, and {shard} has another process ({pid}, now {here})"
                )
                self._over(at, "failed", reason)
                return
            if state != "ready":
                missing.append(shard)
        if not sight.there or missing:
            self._steady = None
        elif self._steady is None or self._steady[0] != sight.instance:
            self._steady = (sight.instance, now)
        elif now - self._steady[1] >= STEADY_S:
            self._over(at, "upgraded", "")
            return
        if now - (self._began or now) > self.view.back_within_s + STEADY_S:
            what = f"{', '.join(missing)} not ready again" if missing else sight.state
            if self._steady is not None:
                what = "its agent keeps ending; look at journalctl -u llmgw-agent there"
            reason = f"{node.node} is llmgw {sight.version}, and after {self.view.back_within_s:.0f} s {what}"
            self._over(at, "failed", reason)

    def _is_new(self, sight: Sight) -> bool:
        last = sight.last_upgrade
        return (
            last is not None
            and last.sha256 == self.view.sha256
            and last.outcome != "back"
            and sight.version == self.view.version
        )

    def _went_back(self, sight: Sight) -> bool:
        """It says so of this very upgrade, and not of an earlier one to the same file."""
        last = sight.last_upgrade
        return last is not None and last.upgrade_id == self.view.id and last.outcome == "back"

    # What changes.

    def _at(self) -> int | None:
        if self.view.state != "running":
            return None
        return next((at for at, node in enumerate(self.view.nodes) if node.state not in OVER), None)

    def _over(self, at: int, state: str, reason: str, *, stops: bool = True) -> None:
        self._set(at, state=state, reason=reason, stage="", done_bytes=None)
        self._turn()
        if stops and state not in GOOD and state != "skipped":
            self._end("stopped", reason)

    def _set(self, at: int, **changes: object) -> None:
        nodes = list(self.view.nodes)
        nodes[at] = msgspec.structs.replace(nodes[at], **changes)
        self._change(nodes=nodes)

    def _end(self, state: str, reason: str) -> None:
        self._change(state=state, reason=reason)

    def _change(self, **changes: object) -> None:
        self.view = msgspec.structs.replace(self.view, change=self.view.change + 1, **changes)


__all__ = ["Engine", "NodeUpgrade", "Roll", "Sight"]
