"""Usage adds up in the store, each batch once, is read by what is asked, and ends when it is old."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.messages.routes import UsageBatch, UsageRow
from llmgw.messages.usage_views import UsageEntry
from llmgw.server.store.interface import StoreInterface
from llmgw.server.store.store import Store
from tests.store.inline import InlineStore
from tests.store.running import on_a_loop

HOUR = 3600
DAY = 24 * HOUR
NOW = 1_900_000_000.0
THIS_HOUR = int(NOW) // HOUR * HOUR

Opener = Callable[[float], Awaitable[StoreInterface]]


@pytest.fixture(params=["real", "inline"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    async def open_it(now: float) -> StoreInterface:
        if request.param == "real":
            return await Store.open(tmp_path / "state", now)
        return InlineStore.open(tmp_path / "state", now)

    return open_it


def row(hour_s: int = THIS_HOUR, key: str = "k", model: str = "m", **counts: int) -> UsageRow:
    return UsageRow(hour_s=hour_s, key=key, model=model, **{"requests": 1, **counts})


def batch(number: int, *rows: UsageRow, ledger: str = "one") -> UsageBatch:
    return UsageBatch(ledger=ledger, number=number, rows=list(rows))


async def add(store: StoreInterface, *batches: UsageBatch) -> list[bool]:
    told: list[bool] = []
    store.usage.add(batches, NOW, told.extend)
    await store.flush()
    return told


async def read(store: StoreInterface, *by: str, **more: object) -> list[UsageEntry]:
    return await store.usage.read(**{"from_s": 0, "to_s": 2**40, "by": by, **more})  # type: ignore[arg-type]


@on_a_loop
async def test_a_batch_counts_once_however_often_it_comes_also_to_the_next_server(opened: Opener) -> None:
    store = await opened(NOW)
    first = batch(1, row(prompt_tokens=10, completion_tokens=5), row(model="n", errors=1))
    assert await add(store, first, batch(1, row(), ledger="two")) == [True, True]
    assert await add(store, first) == [False]
    await store.close()
    store = await opened(NOW + 1)
    assert await add(store, first, batch(2, row(prompt_tokens=1, cached_tokens=1, estimated=1))) == [False, True]
    entries = await read(store, "model")
    assert entries == [
        UsageEntry(model="m", requests=3, prompt_tokens=11, cached_tokens=1, completion_tokens=5, estimated=1),
        UsageEntry(model="n", requests=1, errors=1),
    ]
    await store.close()


@on_a_loop
async def test_sums_are_told_apart_by_what_is_asked(opened: Opener) -> None:
    store = await opened(NOW)
    midnight = int(NOW) // DAY * DAY
    rows = [row(midnight + hour * HOUR, key, requests=1 << hour) for hour in (0, 1, 23, 24) for key in ("a", "b")]
    await add(store, batch(1, *rows))
    both = 2 * (1 + 2 + (1 << 23) + (1 << 24))
    assert await read(store) == [UsageEntry(requests=both)]
    assert [(entry.at, entry.requests) for entry in await read(store, "day")] == [
        (midnight, 2 * (3 + (1 << 23))),
        (midnight + DAY, 2 << 24),
    ]
    hours = await read(store, "hour", "key", from_s=midnight + HOUR, to_s=midnight + 24 * HOUR)
    assert [(entry.at, entry.key, entry.model, entry.requests) for entry in hours] == [
        (midnight + HOUR, "a", None, 2),
        (midnight + HOUR, "b", None, 2),
        (midnight + 23 * HOUR, "a", None, 1 << 23),
        (midnight + 23 * HOUR, "b", None, 1 << 23),
    ]
    assert [entry.requests for entry in await read(store, "model", key="a")] == [both // 2]
    assert await read(store, "model", model="none") == []
    assert len(await read(store, "hour", "key", limit=3)) == 3
    await store.close()


@on_a_loop
async def test_what_is_old_ends_and_nothing_else(opened: Opener) -> None:
    store = await opened(NOW)
    hours = [THIS_HOUR - age * DAY for age in (0, 5, 9, 11, 12, 40, 400)]
    await add(store, batch(1, *(row(hour) for hour in hours)))
    store.usage.prune(10 * DAY, NOW)
    for _ in range(70):
        await store.flush()
    assert [entry.at for entry in await read(store, "hour")] == sorted(hours[:3])
    store.usage.prune(10 * DAY, NOW + 20 * DAY)
    await store.flush()
    assert await add(store, batch(1, row())) == [True], "its ledger ended long ago"
    await store.close()


@on_a_loop
async def test_what_no_database_takes_is_bounded(opened: Opener) -> None:
    store = await opened(NOW)
    long = "k" * 100
    wild = [
        row(key=long + "1", prompt_tokens=2**70),
        row(key=long + "2", prompt_tokens=-5),
        row(key="\x00\udc80"),
    ]
    assert await add(store, batch(1, *wild), batch(1, ledger="empty")) == [True, True]
    first, second = await read(store, "key")
    assert (first.key, first.requests, first.prompt_tokens) == ("k" * 64, 2, 2**52)
    assert second.key == "\ufffd?"
    await store.close()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["one", "two"]),
            st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(0, 9)), max_size=4),
            st.integers(0, 2),
        ),
        max_size=8,
    )
)
def test_repeated_and_mixed_batches_add_up(tmp_path_factory: pytest.TempPathFactory, sent: list) -> None:
    store = InlineStore.open(tmp_path_factory.mktemp("usage"), NOW)
    numbers = {"one": 0, "two": 0}
    expected: dict[tuple[int, str], int] = {}
    for ledger, rows, repeats in sent:
        numbers[ledger] += 1
        made = batch(
            numbers[ledger], *(row(hour * HOUR, key, requests=n) for hour, key, n in rows), ledger=ledger
        )
        for _ in range(1 + repeats):
            store.usage.add([made], NOW, lambda fresh: None)
        for hour, key, n in rows:
            expected[hour * HOUR, key] = expected.get((hour * HOUR, key), 0) + n

    @on_a_loop
    async def compare() -> None:
        entries = await read(store, "hour", "key")
        assert {(entry.at, entry.key): entry.requests for entry in entries} == expected
        await store.close()

    compare()
