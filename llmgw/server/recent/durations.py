"""Durations counted in buckets that grow by a seventh: percentiles within 7 % from a few integers."""

from __future__ import annotations

import math

SMALLEST_S = 0.0005
GROWTH = 1.14
BUCKETS_MAX = 128
"""The last begins beyond two hours."""
_LOG_GROWTH = math.log(GROWTH)

Counts = dict[int, int]
"""Bucket → how many; sparse."""


def count(counts: Counts, duration_s: float) -> None:
    """Count one duration in seconds."""
    bucket = 0
    if duration_s > SMALLEST_S:
        bucket = min(BUCKETS_MAX - 1, 1 + int(math.log(duration_s / SMALLEST_S) / _LOG_GROWTH))
    counts[bucket] = counts.get(bucket, 0) + 1


def percentile_s(counts: Counts, share: float) -> float | None:
    """The duration that `share` (0 to 1) of those counted did not exceed; None when none was."""
    left = math.ceil(sum(counts.values()) * share)
    for bucket in sorted(counts):
        left -= counts[bucket]
        if left <= 0:
            # The middle of the bucket, by the same growth.
            return SMALLEST_S * GROWTH ** (bucket - 0.5) if bucket else SMALLEST_S
    return None
