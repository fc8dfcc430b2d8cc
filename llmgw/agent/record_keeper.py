"""A live shard's record: changed at once in memory, then on disk by a thread, then told to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from llmgw.agent.held import held_shard
from llmgw.agent.spec_store import ShardRecord, SpecStore
from llmgw.messages.agent import EngineFigures, HeldShard, Progress, ShardPhase

log = structlog.get_logger("agent")


class RecordKeeper:
    """Keeps one record. `now_boot_s` is CLOCK_BOOTTIME; `told` is called when a transition is on disk."""

    def __init__(
        self, record: ShardRecord, store: SpecStore, *, now_boot_s: Callable[[], float], told: Callable[[], None]
    ) -> None:
        self.record = record
        self._store = store
        self._now_boot_s = now_boot_s
        self._told = told
        self._saving: set[asyncio.Future[None]] = set()
        self._progress: Progress | None = None
        self._figures: EngineFigures | None = None
        self._figures_boot_s = 0.0
        self._figures_problem: str | None = None

    def held(self) -> HeldShard:
        """The shard as the server is told of it."""
        now = self._now_boot_s()
        figures = self._figures
        if figures is not None:
            figures = msgspec.structs.replace(figures, age_s=max(0.0, now - self._figures_boot_s))
        return held_shard(self.record, now, self._progress, figures, self._figures_problem)

    def show(self, progress: Progress) -> None:
        """Progress rides on the shard's status until its next transition, and is none itself."""
        self._progress = progress

    def show_figures(self, figures: EngineFigures | None, problem: str | None = None) -> None:
        """What its engine says of its load, until the next reading or transition; no transition itself.

        `problem` is why it has said nothing for a while.
        """
        self._figures, self._figures_boot_s = figures, self._now_boot_s()
        self._figures_problem = problem

    def transition(self, phase: ShardPhase, **changes: Any) -> asyncio.Future[None]:
        """Enter a phase: a new version, saved, then told."""
        log.info("shard", shard=self.record.spec.shard_id, phase=phase, reason=changes.get("reason"))
        self._progress = self._figures = self._figures_problem = None
        changes.setdefault("reason", None)
        version = self.record.version + 1
        saving = self.change(phase=phase, version=version, phase_since_boot_s=self._now_boot_s(), **changes)
        return asyncio.ensure_future(self._tell(saving))

    def change(self, **changes: Any) -> asyncio.Future[None]:
        """Change the record at once; the future is done when it is on disk."""
        self.record = msgspec.structs.replace(self.record, serial=self.record.serial + 1, **changes)
        saving = asyncio.ensure_future(self._save(self.record))
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)
        return saving

    async def saved(self) -> None:
        """Wait until every change so far is on disk."""
        await asyncio.gather(*self._saving, return_exceptions=True)

    async def _tell(self, saving: asyncio.Future[None]) -> None:
        await saving
        self._told()

    async def _save(self, record: ShardRecord) -> None:
        try:
            await asyncio.to_thread(self._store.save, record)
        except OSError as exc:
            # A full disk must not end an engine; what is lost is the adoption of this change.
            log.error("a shard's description cannot be written", shard=record.spec.shard_id, error=exc.strerror)
