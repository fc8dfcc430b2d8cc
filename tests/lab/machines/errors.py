"""What the lab says when it cannot do what was asked."""

from __future__ import annotations

from llmgw.config.errors import SentenceError


class LabError(SentenceError):
    """The lab cannot do this: what happened, where, and what to do."""
