"""The errors of this room. Their texts are sentences: what happened, where, what to do."""

from __future__ import annotations

from llmgw.config.errors import SentenceError


class OnboardError(SentenceError):
    """A node could not be onboarded, or must not be."""


class StepError(OnboardError):
    """A command failed on the node. `said` is what it wrote to stderr, for whoever knows better what it means."""

    def __init__(self, sentence: str, code: int, said: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.said = said
