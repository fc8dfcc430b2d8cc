"""When something ends, as people type it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.cli.ctl.expiry import ExpiryError, parse_expiry

NOW = datetime(2026, 5, 17, 12, 0, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def berlin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()  # what this process believes of its zone outlives the variable


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("30d", NOW + 30 * 86400),
        ("1h30m", NOW + 5400),
        ("2026-05-18", datetime(2026, 5, 17, 22, 0, tzinfo=UTC).timestamp()),
        ("2026-05-18T18:00", datetime(2026, 5, 18, 16, 0, tzinfo=UTC).timestamp()),
        ("2026-05-18 18:00:30", datetime(2026, 5, 18, 16, 0, 30, tzinfo=UTC).timestamp()),
        ("2026-05-18T18:00:00Z", datetime(2026, 5, 18, 18, 0, tzinfo=UTC).timestamp()),
        ("2026-05-18T18:00:00+05:30", datetime(2026, 5, 18, 12, 30, tzinfo=UTC).timestamp()),
    ],
)
def test_durations_count_from_now_and_dates_are_of_here(text: str, at: float) -> None:
    assert parse_expiry(text, NOW) == at


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "neither a duration nor a date"),
        ("tomorrow", "neither a duration nor a date"),
        ("-1d", "neither a duration nor a date"),
        ("2026-13-01", "no day of the calendar"),
        ("2026-05-18T25:00", "no day of the calendar"),
        ("2026-05-17", "lies in the past"),
        ("0d", "ends at once"),
        ("99999d", "neither a duration nor a date"),
        ("18.05.2026", "neither a duration nor a date"),
    ],
)
def test_what_is_no_time_to_come_gets_a_sentence(text: str, part: str) -> None:
    with pytest.raises(ExpiryError, match=part) as refused:
        parse_expiry(text, NOW)
    assert refused.value.exit_code == 2
    assert str(refused.value).startswith("--expires: ")


@given(st.text(max_size=30))
def test_no_text_breaks_it(text: str) -> None:
    try:
        assert parse_expiry(text, NOW) > NOW
    except ExpiryError:
        pass
