"""The two sides of upgrades as the agent's conversation sees them: becoming another version, and having become
one.
"""

from __future__ import annotations

from llmgw.agent.upgrade.trial import Trial
from llmgw.agent.upgrade.upgrader import Tell, Upgrader
from llmgw.messages.upgrade import LastUpgrade, Upgrade


class OwnUpgrades:
    """`Upgrades` of this very process."""

    def __init__(self, upgrader: Upgrader, trial: Trial) -> None:
        self._upgrader = upgrader
        self._trial = trial

    def last(self) -> LastUpgrade | None:
        return self._trial.last()

    def registered(self) -> None:
        self._trial.registered()

    def refused(self, sentence: str) -> None:
        self._trial.refused(sentence)

    def unheard(self, sentence: str) -> None:
        self._trial.unheard(sentence)

    async def carry_out(self, upgrade: Upgrade, tell: Tell) -> None:
        await self._upgrader.carry_out(upgrade, tell)
