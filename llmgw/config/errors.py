"""Errors that are sentences for people. The command line prints them as they are, without a traceback."""

from __future__ import annotations


class SentenceError(Exception):
    """A failure whose text says what happened, where, and what to do. Rooms derive their own from it.

    `str()` is one sentence, or several with one a line. `exit_code` is what the process ends with.
    """

    exit_code = 1


class ConfigError(SentenceError):
    """A configuration file or an override that cannot be used: one sentence a line, each with its place."""


class KeyedError(ValueError):
    """Raised in a model's validator when one key below the model is to blame: `key` is the path to it.

    To Pydantic it is a ValueError like any other; the loader points at that key's line.
    """

    def __init__(self, sentence: str, *key: str | int) -> None:
        super().__init__(sentence)
        self.key = key
