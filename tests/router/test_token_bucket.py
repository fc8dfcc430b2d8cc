"""A rate that several routers share: what they give together is what one would give."""

from __future__ import annotations

import pytest

from llmgw.router.token_bucket import MINUTE_S, TokenBucket


def taken(bucket: TokenBucket, tries: int, now: float) -> int:
    """How many of so many requests at once are given."""
    count = 0
    for _ in range(tries):
        if bucket.level(now) >= bucket.least:
            bucket.take(1, now)
            count += 1
    return count


def test_a_minutes_worth_is_there_at_once_and_comes_back_evenly() -> None:
    bucket = TokenBucket(60, 60, 0.0)
    assert taken(bucket, 100, 0.0) == 60
    assert taken(bucket, 100, 0.5) == 0
    assert taken(bucket, 100, 10.5) == 10
    assert taken(bucket, 100, 1000.0) == 60, "it holds no more than a minute's worth"


def test_what_is_owed_is_paid_before_anything_is_given_again() -> None:
    bucket = TokenBucket(100, 100, 0.0)
    bucket.take(250, 0.0)
    assert bucket.level(0.0) == -150
    wait_s = bucket.wait_s(0.0)
    assert wait_s == pytest.approx(150 / 100 * MINUTE_S + 0.6), "and one is there"
    assert bucket.level(wait_s - 0.01) < bucket.least
    assert bucket.level(wait_s) >= bucket.least


def test_a_part_below_one_still_gives_its_first_request_and_then_one_in_its_time() -> None:
    bucket = TokenBucket(1, 0.5, 0.0)
    assert taken(bucket, 5, 0.0) == 1
    assert taken(bucket, 5, 119.0) == 0
    assert taken(bucket, 5, 121.0) == 1


def test_whoever_used_half_of_a_limit_has_half_of_the_next_one_left() -> None:
    bucket = TokenBucket(100, 100, 0.0)
    bucket.take(50, 0.0)
    bucket.set_limit(10, 0.0)
    assert bucket.level(0.0) == 5
    bucket.set_limit(1000, 0.0)
    assert bucket.level(0.0) == 500


def test_a_debt_from_a_high_limit_lasts_at_most_a_minute_under_a_low_one() -> None:
    bucket = TokenBucket(1_000_000, 1_000_000, 0.0)
    bucket.take(50_000_000, 0.0)
    bucket.set_limit(10, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(MINUTE_S + MINUTE_S / 10), "the debt's, and the next request's"


def test_what_is_moved_is_counted_in_all_so_that_hearing_it_twice_changes_nothing() -> None:
    bucket = TokenBucket(100, 50, 0.0)
    bucket.take(50, 0.0)
    for _ in range(3):
        bucket.set_part(90, 30.0, 0.0)
        assert bucket.level(0.0) == 30
    bucket.set_part(90, 20.0, 0.0)
    assert bucket.level(0.0) == 20
    bucket.begin_moves()
    bucket.set_part(90, -5.0, 0.0)
    assert bucket.level(0.0) == 15
    bucket.set_part(10, None, 0.0)
    assert bucket.level(0.0) == 10, "a part holds no more than itself"


def test_what_is_taken_after_a_quiet_time_is_taken_from_a_full_bucket_and_not_given_back() -> None:
    bucket = TokenBucket(60, 60, 0.0)
    bucket.take(50, 1000.0)
    assert bucket.level(1000.0) == 10
    assert bucket.level(1005.0) == 15
