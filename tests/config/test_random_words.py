"""Secrets are words that no program takes for an option."""

from __future__ import annotations

import base64
import re

from llmgw.config.random_words import SECRET_CHARS, new_secret_word


def test_a_secret_that_would_begin_with_a_dash_is_drawn_again() -> None:
    drawn = ["-begins-with-a-dash", "-and-this-one-too", "begins-with-a-letter"]
    assert new_secret_word(lambda count: drawn.pop(0)) == "begins-with-a-letter"
    assert drawn == []


def test_secrets_are_256_bits_that_a_header_and_an_option_take() -> None:
    words = {new_secret_word() for _ in range(2000)}
    assert len(words) == 2000
    assert all(re.fullmatch(rf"[A-Za-z0-9_][A-Za-z0-9_-]{{{SECRET_CHARS - 1}}}", word) for word in words)
    assert {len(base64.urlsafe_b64decode(word + "=")) for word in words} == {32}
