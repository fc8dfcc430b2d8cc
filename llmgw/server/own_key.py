"""The control process's own key of the model API, for what operators ask in the playground.

Made anew with each server. The secret is in this process's memory alone; routers get its SHA-256, as of every
key.
"""

from __future__ import annotations

from llmgw.config.random_words import new_secret_word
from llmgw.messages.routes import KeyRoute
from llmgw.server.store.secrets import hash_secret

PLAYGROUND = "(playground)"
"""Id and name in usage, requests and metrics. No key that somebody makes can be called so."""


class OwnKey:
    """A key without limits, which no list of keys has."""

    __slots__ = ("route", "secret")

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.route = KeyRoute(id=PLAYGROUND, hash=bytes.fromhex(hash_secret(secret)), of_server=True)

    @classmethod
    def made(cls) -> OwnKey:
        """A new one."""
        return cls(new_secret_word())
