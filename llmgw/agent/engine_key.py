"""The key that an engine demands of whoever talks to it: made here, known to this agent and the routers alone."""

from __future__ import annotations

import secrets

_BYTES = 32


def mint_key() -> str:
    """A new key of 43 characters, all of which a header, an environment and a file can carry."""
    return secrets.token_urlsafe(_BYTES)
