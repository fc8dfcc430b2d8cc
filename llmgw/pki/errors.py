"""The one exception of this room. Its text is a sentence for people: what, where, what to do."""

from __future__ import annotations

from llmgw.config.errors import SentenceError


class PkiError(SentenceError):
    """Something about certificates, keys or the revocation list that a person must mend."""
