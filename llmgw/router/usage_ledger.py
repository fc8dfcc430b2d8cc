"""Adds up what requests took by key, model and hour, and keeps it until the control process has it on disk.

Batches go out one at a time under a number, so that none is counted twice or lost when the server dies between.
"""

from __future__ import annotations

import uuid

from llmgw.messages.routes import Outcome, UsageBatch, UsageRow, UsageStored
from llmgw.router.limits import LEDGER_ROWS_MAX, USAGE_ROWS_MAX, USAGE_S

HOUR_S = 3600
CLIENT_LEFT = 499

_Key = tuple[int, str, str]


class UsageLedger:
    """Memory is bounded by `rows_max`, or by keys times models where these are more."""

    def __init__(
        self,
        ledger: str | None = None,
        *,
        rows_max: int = LEDGER_ROWS_MAX,
        batch_rows_max: int = USAGE_ROWS_MAX,
        interval_s: float = USAGE_S,
    ) -> None:
        self.ledger = ledger or uuid.uuid4().hex
        self._rows: dict[_Key, list[int]] = {}
        """(hour, key, model) → requests, errors, prompt, cached, completion, estimated; not in a batch yet."""
        self._rows_max = self._fold_above = rows_max
        self._batch_rows_max = batch_rows_max
        self._interval_s = interval_s
        self._inherited: list[UsageBatch] = []
        """What an earlier router left, under its own numbers; it goes first."""
        self._batch: UsageBatch | None = None
        self._number = 0
        self._sent = False
        self._made_at = -interval_s
        self._waiting_since: float | None = None
        """On a monotonic clock: since when something waits that nobody acknowledged."""

    def add(self, outcome: Outcome, wall_s: float) -> None:
        """Count a request that has ended at `wall_s` (seconds since 1970). One without a model is nobody's."""
        status = outcome.status
        where = (int(wall_s) // HOUR_S, outcome.key, outcome.model)
        row = self._rows.get(where)
        if row is None:
            row = self._new_row(where)
        row[0] += 1
        if status >= 400 and status != CLIENT_LEFT:
            row[1] += 1
        prompt = outcome.prompt_tokens
        if prompt is not None:
            row[2] += prompt
            row[4] += outcome.completion_tokens or 0
            if outcome.cached_tokens:
                row[3] += outcome.cached_tokens
            if outcome.estimated:
                row[5] += 1

    def take(self, now: float) -> UsageBatch | None:
        """What is to be sent now, on a monotonic clock: the batch that nobody acknowledged, if it was not sent
        over this connection, else the next. None when there is nothing, or it is too soon."""
        if self._batch is None:
            if self._inherited:
                self._batch = self._inherited.pop(0)
            elif not self._rows or now - self._made_at < self._interval_s:
                return None
            else:
                self._made_at = now
                self._number += 1
                self._batch = UsageBatch(ledger=self.ledger, number=self._number, rows=self._take_rows())
        elif self._sent:
            return None
        self._sent = True
        return self._batch

    def connected(self) -> None:
        """Another control process reads from now on: whether the one before took the batch is for it to know."""
        self._sent = False

    def stored(self, message: UsageStored) -> None:
        """The control process has a batch on its disk."""
        batch = self._batch
        if batch is not None and (message.ledger, message.number) == (batch.ledger, batch.number):
            self._batch = None
            self._waiting_since = None

    @property
    def waiting(self) -> bool:
        """True while something is not acknowledged."""
        return self._batch is not None or bool(self._rows) or bool(self._inherited)

    def inherit(self, batches: list[UsageBatch]) -> None:
        """Send these first: an earlier router could not."""
        self._inherited += batches

    def untaken(self, now: float, after_s: float) -> list[UsageBatch]:
        """Everything that waits, as the batches that it would be sent in; none until it has waited so long."""
        if not self.waiting:
            self._waiting_since = None
            return []
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < after_s:
            return []
        batches = [*([self._batch] if self._batch is not None else []), *self._inherited]
        rows = [_row(where, row) for where, row in self._rows.items()]
        for number, start in enumerate(range(0, len(rows), self._batch_rows_max), self._number + 1):
            part = rows[start : start + self._batch_rows_max]
            batches.append(UsageBatch(ledger=self.ledger, number=number, rows=part))
        return batches

    def _take_rows(self) -> list[UsageRow]:
        rows = self._rows
        taken = list(rows)[: self._batch_rows_max]
        self._fold_above = self._rows_max
        return [_row(where, rows.pop(where)) for where in taken]

    def _new_row(self, where: _Key) -> list[int]:
        if len(self._rows) >= self._fold_above:
            self._fold()
        return self._rows.setdefault(where, [0] * 6)

    def _fold(self) -> None:
        """Put the hours of each key and model together, under the latest: nothing is lost but when it was."""
        folded: dict[tuple[str, str], tuple[int, list[int]]] = {}
        for (hour, key, model), row in self._rows.items():
            known = folded.get((key, model))
            if known is not None:
                hour = max(hour, known[0])
                row = [one + other for one, other in zip(known[1], row, strict=True)]
            folded[key, model] = hour, row
        self._rows = {(hour, key, model): row for (key, model), (hour, row) in folded.items()}
        # Not with each new row, where keys and models are more than that.
        self._fold_above = max(self._rows_max, 2 * len(self._rows))


def _row(where: _Key, row: list[int]) -> UsageRow:
    hour, key, model = where
    return UsageRow(
        hour_s=hour * HOUR_S,
        key=key,
        model=model,
        requests=row[0],
        errors=row[1],
        prompt_tokens=row[2],
        cached_tokens=row[3],
        completion_tokens=row[4],
        estimated=row[5],
    )
