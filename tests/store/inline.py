"""The store without threads or waiting: the same statements, carried out where they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine

from llmgw.messages.findings import Finding
from llmgw.server.store import migrate, reads
from llmgw.server.store.engine import migrating_engine
from llmgw.server.store.interface import StoreInterface
from llmgw.server.store.queue import Write
from llmgw.server.store.records import Kept

T = TypeVar("T")


class InlineStore(StoreInterface):
    """What a simulation on a virtual clock uses in place of `Store`."""

    def __init__(self, kept: Kept, engine: Engine) -> None:
        super().__init__(kept)
        self._engine = engine

    @classmethod
    def open(cls, state: Path, now: float) -> InlineStore:
        state.mkdir(parents=True, exist_ok=True)
        migrate.prepare(state / "llmgw.db", now)
        engine = migrating_engine(state / "llmgw.db")
        with engine.begin() as connection:
            return cls(reads.begin_epoch(connection, now, "0"), engine)

    def _enqueue(self, write: Write) -> None:
        with self._engine.begin() as connection:
            result = write.run(connection)
        if write.then is not None:
            write.then(result)

    async def _commit(self, apply: Callable[[Connection], T], then: Callable[[T], None]) -> T:
        with self._engine.begin() as connection:
            result = apply(connection)
        then(result)
        return result

    async def _read(self, ask: Callable[[Connection], T]) -> T:
        with self._engine.begin() as connection:
            return ask(connection)

    async def flush(self, timeout_s: float | None = None) -> None:
        return None

    async def stored(self, timeout_s: float) -> bool:
        return True

    def findings(self) -> list[Finding]:
        return []

    async def close(self, timeout_s: float = 0.0) -> None:
        self._engine.dispose()
