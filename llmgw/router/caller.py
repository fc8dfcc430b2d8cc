"""Who sent a request, as the router sees it while the request lives."""

from __future__ import annotations


class Caller:
    """A key, or everybody where no keys are asked for. One object for all requests of the same caller.

    `id` is the key's id, empty for everybody: what usage is counted by and what a queue is fair between.
    Requests of a higher `priority` leave a queue first.
    """

    __slots__ = ("id", "priority")

    gone = False
    """Revoked, or expired: a request that it has begun to send is not served any more."""

    def __init__(self, id: str = "", priority: int = 0) -> None:
        self.id = id
        self.priority = priority

    def check_alive(self) -> None:
        """Raises ApiError (401) for who was known when the request's head came, and is not any more."""

    def may_use(self, model: str) -> bool:
        """Whether this caller may ask for the model of this name."""
        return True

    def begin(self, model: str, now: float) -> bytes:
        """A request for this model is about to be served; `ended` follows, unless this raises ApiError: the
        caller may not have the model, or has had as much as it may have for now.

        Returns header lines for the answer, which say what is left of the caller's limits.
        """
        return b""

    def refused(self, now: float) -> None:
        """A request that was begun is over and was with no engine: there was no room for it, or none to ask."""

    def ended(self, tokens: int, now: float) -> None:
        """A request of this caller is over, and took so many tokens, prompt and answer together."""


ANYBODY = Caller()
