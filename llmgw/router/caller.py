"""Who sent a request, as the router sees it while the request lives."""

from __future__ import annotations


class Caller:
    """A key, or everybody where no keys are asked for. One object for all requests of the same caller.

    `id` is the key's id, empty for everybody: what usage is counted by and what a queue is fair between.
    Requests of a higher `priority` leave a queue first.
    """

    __slots__ = ("id", "priority")

    def __init__(self, id: str = "", priority: int = 0) -> None:
        self.id = id
        self.priority = priority

    def ended(self, tokens: int) -> None:
        """A request of this caller is over, and took so many tokens, prompt and answer together."""


ANYBODY = Caller()
