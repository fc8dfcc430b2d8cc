"""Wrong tokens in the audit log: one entry an address and ten minutes, which counts, so that no disk fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmgw.messages.audit_views import AuditEntry
from llmgw.server.store.audit import AuditStore

WINDOW_S = 600.0
ADDRESSES_MAX = 20
"""So many addresses have an entry of their own in a window; the others share one."""
OTHERS = "(other addresses)"
WRITE_EVERY_S = 5.0
"""A count that grows is written this often at most."""
MESSAGE = "this token is not known"


@dataclass(slots=True)
class _Counted:
    entry_id: int
    count: int
    last_at: float
    written: int
    written_at: float


class WrongTokens:
    """Counts by address. `wall` gives seconds since the epoch."""

    def __init__(self, store: AuditStore, wall: Callable[[], float]) -> None:
        self._store = store
        self._wall = wall
        self._began = 0.0
        self._counted: dict[str, _Counted] = {}

    def add(self, address: str, method: str, route: str) -> None:
        """A token that nobody knows came from there. Raises StoreError when the store is closed."""
        now = self._wall()
        # Also when the clock was set back: a window never lasts longer than it should.
        if not self._began <= now < self._began + WINDOW_S:
            self.write()
            self._counted.clear()
            self._began = now
        own = address in self._counted or len(self._counted) < ADDRESSES_MAX
        name = address if own else OTHERS
        known = self._counted.get(name)
        if known is None:
            entry = AuditEntry(
                id=0, at=now, address=name, method=method, route=route, status=401, message=MESSAGE
            )
            self._counted[name] = _Counted(self._store.add(entry), 1, now, 1, now)
            return
        known.count, known.last_at = known.count + 1, now
        if not known.written_at <= now < known.written_at + WRITE_EVERY_S:
            self._write(known, now)

    def write(self) -> None:
        """Write every count that is not written yet."""
        now = self._wall()
        for counted in self._counted.values():
            if counted.count != counted.written:
                self._write(counted, now)

    def _write(self, counted: _Counted, now: float) -> None:
        self._store.count(counted.entry_id, counted.count, counted.last_at)
        counted.written, counted.written_at = counted.count, now
