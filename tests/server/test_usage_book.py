"""The server stores routers' usage at most once a second, and acknowledges what is on the disk."""

from __future__ import annotations

import asyncio

from llmgw.messages.routes import UsageBatch, UsageRow, UsageStored
from llmgw.metrics.family import OTHER
from llmgw.server.usage_book import UsageBook
from tests.router.support import until


class Disk:
    """A store that commits when a test says so."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.written: list[list[UsageBatch]] = []
        self.pruned: list[float] = []
        self.slow = False
        self._late: list = []

    def add(self, batches, now, then) -> None:
        self.written.append(list(batches))

        def commit() -> None:
            fresh = []
            for batch in batches:
                fresh.append(batch.number > self.numbers.get(batch.ledger, 0))
                self.numbers[batch.ledger] = max(batch.number, self.numbers.get(batch.ledger, 0))
            then(fresh)

        if self.slow:
            self._late.append(commit)
        else:
            commit()

    def commit(self) -> None:
        late, self._late = self._late, []
        for each in late:
            each()

    def prune(self, keep_s: float, now: float) -> None:
        self.pruned.append(now - keep_s)


def batch(number: int, ledger: str = "one", model: str = "m", prompt: int = 10) -> UsageBatch:
    row = UsageRow(hour_s=0, key="", model=model, requests=1, prompt_tokens=prompt, completion_tokens=1)
    return UsageBatch(ledger=ledger, number=number, rows=[row])


def book(disk: Disk, every_s: float = 0.05) -> UsageBook:
    made = UsageBook(disk, keep_s=100.0, wall=lambda: 1000.0, write_every_s=every_s)  # type: ignore[arg-type]
    made.known = lambda: {"m"}
    return made


def test_batches_of_several_routers_go_into_one_write_and_each_is_acknowledged() -> None:
    async def main() -> None:
        disk, acked = Disk(), []
        usage = book(disk, every_s=0.2)
        usage.take(batch(1), acked.append)
        await until(lambda: acked, "the first is written at once")
        for ledger in ("two", "three"):
            usage.take(batch(1, ledger), acked.append)
        assert len(disk.written) == 1, "not again so soon"
        await until(lambda: len(acked) == 3, "the others")
        assert [len(write) for write in disk.written] == [1, 2]
        assert UsageStored(ledger="three", number=1) in acked
        assert disk.pruned == [900.0]

    asyncio.run(main())


def test_nothing_is_acknowledged_before_it_is_on_the_disk_and_nothing_counts_twice() -> None:
    async def main() -> None:
        disk, acked = Disk(), []
        usage = book(disk)
        disk.slow = True
        usage.take(batch(1), acked.append)
        usage.write()
        usage.take(batch(1), acked.append)  # over a new connection
        usage.write()
        assert (acked, usage.tokens) == ([], {})
        disk.commit()
        assert acked == [UsageStored(ledger="one", number=1)] * 2
        assert (usage.tokens["m"].prompt, usage.tokens["m"].completion) == (10, 1)

    asyncio.run(main())


def test_tokens_of_models_that_are_in_no_catalog_are_counted_together() -> None:
    async def main() -> None:
        disk = Disk()
        usage = book(disk)
        for number, name in enumerate(("m", "gone", "gone-too"), 1):
            usage.take(batch(number, model=name), lambda stored: None)
            usage.write()
        assert {name: tally.prompt for name, tally in usage.tokens.items()} == {"m": 10, OTHER: 20}

    asyncio.run(main())
