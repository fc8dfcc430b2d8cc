"""Usage waits in the router, added up and bounded, until it is acknowledged; a file outlives the router."""

from __future__ import annotations

from pathlib import Path

from llmgw.messages.routes import Outcome, UsageBatch, UsageStored
from llmgw.router.table import RoutingTable
from llmgw.router.telemetry import TelemetryLog
from llmgw.router.usage_file import UsageFile
from llmgw.router.usage_ledger import HOUR_S, UsageLedger


def outcome(
    key: str = "", model: str = "m", status: int = 200, prompt: int | None = 10, **more: object
) -> Outcome:
    return Outcome(model=model, endpoint="e", status=status, key=key, prompt_tokens=prompt, **more)  # type: ignore[arg-type]


def ledger(**more: object) -> UsageLedger:
    return UsageLedger("one", interval_s=1.0, **more)  # type: ignore[arg-type]


def stored(batch: UsageBatch) -> UsageStored:
    return UsageStored(ledger=batch.ledger, number=batch.number)


def test_requests_are_added_up_by_key_model_and_hour() -> None:
    usage = ledger()
    usage.add(outcome("k", cached_tokens=4, completion_tokens=5), 10.0)
    usage.add(outcome("k", completion_tokens=1, estimated=True), HOUR_S - 1.0)
    usage.add(outcome("k", status=502, prompt=None), 20.0)
    usage.add(outcome("k", status=499, completion_tokens=2, estimated=True), 20.0)
    usage.add(outcome("k", model="n"), float(HOUR_S))
    batch = usage.take(0.0)
    assert batch is not None
    first, second = batch.rows
    assert (first.hour_s, first.key, first.model) == (0, "k", "m")
    assert (first.requests, first.errors, first.estimated) == (4, 1, 2)
    assert (first.prompt_tokens, first.cached_tokens, first.completion_tokens) == (30, 4, 8)
    assert (second.hour_s, second.model, second.requests) == (HOUR_S, "n", 1)


def test_a_batch_is_the_same_until_it_is_acknowledged_and_goes_once_over_each_connection() -> None:
    usage = ledger()
    usage.add(outcome(), 0.0)
    batch = usage.take(0.0)
    assert batch is not None
    usage.add(outcome(), 0.0)
    assert usage.take(5.0) is None, "it is on its way"
    usage.connected()
    assert usage.take(5.0) is batch, "another server may not know it"
    usage.stored(UsageStored(ledger="another", number=1))
    usage.stored(UsageStored(ledger="one", number=7))
    assert usage.take(6.0) is None
    usage.stored(stored(batch))
    after = usage.take(6.0)
    assert after is not None
    assert (after.number, after.rows[0].requests) == (2, 1)
    usage.stored(stored(after))
    usage.add(outcome(), 0.0)
    assert usage.take(6.5) is None, "not that often"
    assert usage.take(7.0) is not None
    assert usage.waiting


def test_a_server_that_is_away_for_weeks_costs_hours_and_no_tokens() -> None:
    usage = ledger(rows_max=100, batch_rows_max=40)
    for hour in range(1_000):
        for key in ("a", "b"):
            usage.add(outcome(key), hour * HOUR_S)
    assert len(usage._rows) <= 101
    requests = 0
    now = 0.0
    while (batch := usage.take(now)) is not None:
        assert len(batch.rows) <= 40
        requests += sum(row.requests for row in batch.rows)
        usage.stored(stored(batch))
        now += 1.0
    assert requests == 2_000
    assert not usage.waiting


def test_more_keys_and_models_than_rows_are_all_kept() -> None:
    usage = ledger(rows_max=10, batch_rows_max=1_000)
    for number in range(300):
        usage.add(outcome(f"k{number}"), number * 60.0)
    batch = usage.take(0.0)
    assert batch is not None
    assert {row.key for row in batch.rows} == {f"k{number}" for number in range(300)}


def test_what_nobody_takes_is_in_a_file_that_the_next_router_sends_under_the_same_numbers(tmp_path: Path) -> None:
    path = tmp_path / "router-0.usage"
    usage = ledger(batch_rows_max=1)
    file = UsageFile(path, usage)
    file.load()
    usage.add(outcome("a"), 0.0)
    batch = usage.take(0.0)
    usage.add(outcome("b"), 0.0)
    usage.add(outcome("c"), 0.0)
    assert usage.untaken(10.0, 2.0) == [], "it has just begun to wait"
    assert [each.number for each in usage.untaken(12.0, 2.0)] == [1, 2, 3]
    file.close()
    assert path.stat().st_mode & 0o777 == 0o600

    heir = UsageLedger("two", interval_s=1.0)
    heirs_file = UsageFile(path, heir)
    heirs_file.load()
    heir.add(outcome("d"), 0.0)
    sent = []
    while (each := heir.take(float(len(sent)))) is not None:
        sent.append(each)
        heir.stored(stored(each))
    assert sent[0] == batch
    assert [(each.ledger, each.number) for each in sent] == [("one", 1), ("one", 2), ("one", 3), ("two", 1)]
    heirs_file.close()
    assert not path.exists(), "nothing waits any more"


def test_a_file_that_cannot_be_read_is_left_out_with_a_sentence(tmp_path: Path, caplog) -> None:
    path = tmp_path / "router-0.usage"
    path.write_bytes(b"\x93nonsense")
    usage = ledger()
    UsageFile(path, usage).load()
    assert not usage.waiting
    assert f"{path} cannot be read" in caplog.text


def test_outcomes_that_are_dropped_since_nobody_reads_are_counted_all_the_same() -> None:
    telemetry = TelemetryLog(outcomes_max=2)
    for status in (200, 200, 503, 200, 200):
        telemetry.record(outcome(status=status))
    telemetry.record(Outcome(model="", endpoint=None, status=404))
    frame = telemetry.take(RoutingTable(idle_limit_s=1.0), 10.0)
    assert (len(frame.outcomes), frame.dropped) == (2, 4)
    assert frame.usage is not None
    assert [(each.requests, each.errors, each.prompt_tokens) for each in frame.usage.rows] == [(5, 1, 50)]
