"""A little of the fuzzing on every run; `scripts/fuzz --seconds N` does as much as wanted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.router.fuzz.cases import cases


@pytest.mark.parametrize("kind", cases(120, repeatable=True), ids=lambda kind: kind.__name__)
def test_whatever_is_sent_ends_in_whole_messages_and_leaves_nothing_behind(kind: Callable[[], None]) -> None:
    kind()
