"""Numbers as pages write them."""

from __future__ import annotations

import pytest

from llmgw.server.pages.numbers import FILTERS, gbps, in_bytes, mib, per_s, percent, seconds, whole


@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_what_is_unknown_is_a_dash_and_never_a_zero(name: str, value: float | None) -> None:
    assert FILTERS[name](value) == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.0004, "0 ms"),
        (0.34, "340 ms"),
        (0.9997, "1.00 s"),
        (1.234, "1.23 s"),
        (12.34, "12.3 s"),
        (59.97, "1 min"),
        (120, "2 min"),
        (3599, "1 h"),
        (5 * 3600, "5 h"),
        (12 * 86400, "12 days"),
        (-90, "−2 min"),
    ],
)
def test_a_duration_has_the_unit_that_fits_it(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0/s"),
        (0.001, "< 0.01/s"),
        (0.02, "0.02/s"),
        (1.5, "1.5/s"),
        (10, "10.0/s"),
        (99.96, "100/s"),
        (1234.5, "1,234/s"),
    ],
)
def test_a_rate_keeps_the_digits_that_matter(value: float, text: str) -> None:
    assert per_s(value) == text


def test_sizes_shares_and_counts() -> None:
    assert [mib(value) for value in (0, 512, 1536, 143771, 1023.9)] == [
        "0 MiB", "512 MiB", "1.5 GiB", "140 GiB", "1 GiB",
    ]  # fmt: skip
    assert [in_bytes(value) for value in (12, 5.2 * 2**30, 2**60 * 4096)] == ["12 B", "5.2 GiB", "4,096 EiB"]
    assert [percent(share) for share in (0, 0.004, 0.4249, 1)] == ["0 %", "0.4 %", "42 %", "100 %"]
    assert whole(12345) == "12,345"
    assert [gbps(value) for value in (400, 2.5)] == ["400 Gb/s", "2.5 Gb/s"]
