"""Which routers are started and which finish: the number that is wanted, and never fewer that accept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmgw.server.router_plan import Fit, Plan, plan

FITS = st.lists(st.sampled_from(list(Fit)), max_size=8)


def named(*fits: Fit) -> list[tuple[str, Fit]]:
    return [(f"router-{number}", fit) for number, fit in enumerate(fits)]


def test_new_ones_accept_before_old_ones_are_told_to_finish() -> None:
    old = named(Fit.OUTDATED, Fit.OUTDATED)
    assert plan(old, 2) == Plan(start=2, stop=[])
    assert plan([*old, ("router-2", Fit.CURRENT), ("router-3", Fit.UNKNOWN)], 2) == Plan(start=0, stop=[])
    assert plan([*old, ("router-2", Fit.CURRENT), ("router-3", Fit.CURRENT)], 2) == Plan(
        start=0, stop=["router-0", "router-1"]
    )


def test_surplus_ones_finish_the_last_first() -> None:
    assert plan(named(Fit.CURRENT, Fit.CURRENT, Fit.CURRENT), 2) == Plan(start=0, stop=["router-2"])


def test_one_that_leaves_is_replaced_at_once() -> None:
    assert plan(named(Fit.LEAVING, Fit.CURRENT), 2) == Plan(start=1, stop=[])


@given(FITS, st.integers(1, 6))
def test_what_was_planned_comes_to_rest_at_the_number_that_is_wanted(fits: list[Fit], wanted: int) -> None:
    workers = named(*fits)
    for _ in range(4):
        accepting = sum(fit is not Fit.LEAVING for _, fit in workers)
        steps = plan(workers, wanted)
        workers = [(name, fit) for name, fit in workers if name not in steps.stop and fit is not Fit.LEAVING]
        workers += [(f"new-{len(workers)}-{number}", Fit.UNKNOWN) for number in range(steps.start)]
        assert len(workers) >= min(accepting, wanted)
        workers = [(name, Fit.CURRENT if fit is Fit.UNKNOWN else fit) for name, fit in workers]
    assert [fit for _, fit in workers] == [Fit.CURRENT] * wanted
    assert plan(workers, wanted) == Plan(start=0, stop=[])
