"""Versions are ordered as they were released, and one minor version apart may work together."""

from __future__ import annotations

import itertools

import pytest

from llmgw.release.files import ReleaseError
from llmgw.release.versions import is_older, read_version, understand_each_other

IN_ORDER = [
    "0.9",
    "1.0.dev1",
    "1.0a1.dev2",
    "1.0a1",
    "1.0b2",
    "1.0rc1",
    "1.0",
    "1.0.post1.dev1",
    "1.0.post1",
    "1.0.1",
    "1.0.1.1",
    "1.0.2",
    "1.0.10",
    "1.10",
    "2.0",
]


def test_versions_are_in_the_order_of_pep_440() -> None:
    for (at, one), (after, other) in itertools.product(enumerate(IN_ORDER), repeat=2):
        assert is_older(one, other) == (at < after), (one, other)


def test_zeros_at_the_end_say_nothing() -> None:
    assert not is_older("1.0", "1.0.0")
    assert not is_older("1.0.0.0", "1")


@pytest.mark.parametrize("text", ["", "1.2-3", "v1.0", "1..2", "latest", "1.0+local", "1" * 65, "1.0\n"])
def test_what_no_release_is_called_is_a_sentence(text: str) -> None:
    with pytest.raises(ReleaseError, match="is no version of a release"):
        read_version(text)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("1.2.0", "1.2.9", True),
        ("1.2.0", "1.3.1", True),
        ("1.2.0", "1.4.0", False),
        ("0.1.0", "0.2.0rc1", True),
        ("1.9.3", "2.0.1", True),
        ("1.9.3", "2.1.0", False),
        ("1.0", "3.0", False),
    ],
)
def test_one_minor_version_apart_is_understood_in_both_directions(one: str, other: str, expected: bool) -> None:
    assert understand_each_other(one, other) is expected
    assert understand_each_other(other, one) is expected
