"""How the hub refuses a message."""

from __future__ import annotations


class HubError(Exception):
    """A message that is refused. `status` is the HTTP status, `code` stable, the message a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
