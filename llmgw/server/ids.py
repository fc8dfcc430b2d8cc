"""Ids that were never used before."""

from __future__ import annotations

import re
import secrets

SLUG_CHARS_MAX = 40


class RandomIds:
    """`Ids` from the system's randomness."""

    def session(self) -> str:
        """A session: 128 bits, not to be guessed."""
        return secrets.token_urlsafe(16)

    def replica(self, model: str) -> str:
        """A replica of a model: `demo/big` → `big-7f3a2c`. No dot, which parts the rank from it."""
        slug = re.sub(r"[^a-z0-9]+", "-", model.rpartition("/")[2].lower()).strip("-")[:SLUG_CHARS_MAX]
        return f"{slug or 'replica'}-{secrets.token_hex(4)}"

    def request(self) -> str:
        """A request to an agent."""
        return secrets.token_hex(8)
