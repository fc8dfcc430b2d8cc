"""What ends a provisioning: sentences, told all together where several things are wrong."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.config.errors import SentenceError


class ProvisionError(SentenceError):
    """A VM that cannot be made: what is wrong, where, and what to do. One sentence a line."""


class Ended(BaseException):
    """A signal asked this process to end (Ctrl-C, a closed terminal, `kill`). `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def refuse(sentences: Iterable[str]) -> None:
    """Raise ProvisionError with all the sentences; do nothing when there are none."""
    told = list(sentences)
    if told:
        raise ProvisionError("\n".join(told))
