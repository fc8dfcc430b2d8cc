"""Usage as the admin API sees it: what the store has, with what waits for it written first."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from llmgw.messages.usage_views import USAGE_ENTRIES_MAX, UsageEntry, UsageView
from llmgw.server.admin.backend import AdminError
from llmgw.server.store.errors import StoreError
from llmgw.server.store.interface import StoreInterface
from llmgw.server.store.usage_rows import COUNTS

log = structlog.get_logger("server")

FLUSH_WAIT_S = 5.0


class UsageKnown:
    """`AdminUsage` over the store."""

    def __init__(self, store: StoreInterface) -> None:
        self._store = store

    async def view(
        self, *, from_s: int, to_s: int, key: str | None, model: str | None, by: Collection[str]
    ) -> UsageView:
        """The sums of the hours in [from_s, to_s). Raises AdminError(400) for more than can be told at once."""
        try:
            await self._store.flush(timeout_s=FLUSH_WAIT_S)
        except StoreError as error:
            log.warning("usage is answered without what waits to be stored", reason=error.what)
        entries = await self._store.usage.read(
            from_s=from_s, to_s=to_s, key=key, model=model, by=by, limit=USAGE_ENTRIES_MAX + 1
        )
        if len(entries) > USAGE_ENTRIES_MAX:
            raise AdminError(
                400,
                "too-many",
                f"that is more than {USAGE_ENTRIES_MAX} lines; ask for less time, one key or model, or less by",
            )
        if not by and not entries[0].requests:
            entries = []
        sums = {name: sum(getattr(entry, name) for entry in entries) for name in COUNTS}
        return UsageView(from_s=from_s, to_s=to_s, by=list(by), entries=entries, total=UsageEntry(**sums))
