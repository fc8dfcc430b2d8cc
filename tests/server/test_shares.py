"""A limit that several routers hold together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmgw.server.shares import split

DEMANDS = st.dictionaries(
    st.sampled_from([f"router-{n}" for n in range(8)]), st.floats(0, 1e6), min_size=1, max_size=8
)


@given(st.integers(1, 100_000), DEMANDS)
def test_the_parts_are_the_whole_and_nobody_has_none(limit: int, demand: dict[str, float]) -> None:
    parts = split(limit, demand)
    assert set(parts) == set(demand)
    assert sum(parts.values()) == max(limit, len(demand))
    assert min(parts.values()) >= 1


@given(st.integers(1, 100_000), DEMANDS)
def test_whoever_has_more_to_do_has_no_smaller_part(limit: int, demand: dict[str, float]) -> None:
    parts = split(limit, demand)
    for one in demand:
        assert all(parts[one] >= parts[other] - 1 for other in demand if demand[one] >= demand[other])


def test_most_of_it_goes_where_the_load_is() -> None:
    assert split(100, {"a": 90.0, "b": 0.0}) == {"a": 88, "b": 12}
    assert split(100, {"a": 0.0, "b": 0.0}) == {"a": 50, "b": 50}
