"""Secrets as words that programs take anywhere: in a header, an environment, a file, or an option's value."""

from __future__ import annotations

import secrets
from collections.abc import Callable

SECRET_CHARS = 43
"""256 random bits in base64's URL-safe letters."""


def new_secret_word(draw: Callable[[int], str] = secrets.token_urlsafe) -> str:
    """A secret of `SECRET_CHARS` characters (letters, digits, `_`, `-`) that never begins with a dash.

    One in 64 would, and a program that reads its options from a file (SGLang's argparse, for one) or from the
    command line then takes it for the name of another option. `draw` turns a count of random bytes into text.
    """
    while (word := draw(32)).startswith("-"):
        pass
    return word
