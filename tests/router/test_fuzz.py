"""A little of the fuzzing on every run; `scripts/fuzz --seconds N` does as much as wanted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.router.fuzz.cases import cases


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What routers say of engines that answer nonsense."""
    logger = logging.getLogger("llmgw.router")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize("kind", cases(120, repeatable=True), ids=lambda kind: kind.__name__)
def test_whatever_is_sent_ends_in_whole_messages_and_leaves_nothing_behind(kind: Callable[[], None]) -> None:
    kind()
