"""What requests took, as the admin API tells it. Times are seconds since 1970 (UTC)."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

UsageBy = Literal["day", "hour", "key", "model"]
USAGE_BY: tuple[str, ...] = get_args(UsageBy)
USAGE_ENTRIES_MAX = 10_000


class UsageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A sum. `at` is the start of the day or hour; what is not told apart is None.

    `key` is a key's id, empty for requests without one. `errors` are answers of 400 and above, `prompt_tokens`
    include `cached_tokens`, and `estimated` are the requests whose tokens no engine told.
    """

    at: int | None = None
    key: str | None = None
    model: str | None = None
    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of the hours that begin from `from_s` on and before `to_s`, in the order of `by`."""

    from_s: int
    to_s: int
    by: list[str]
    entries: list[UsageEntry]
    total: UsageEntry
