"""The audit log as the admin API, its pages and the server write and read it, over the store."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from llmgw.messages.audit_views import AuditEntry
from llmgw.server.audit.wishes import cleaned
from llmgw.server.audit.wrong_tokens import WrongTokens
from llmgw.server.store.errors import StoreError
from llmgw.server.store.interface import StoreInterface

log = structlog.get_logger("audit")


class AuditBook:
    """Writes never wait and never fail whoever asked for the change.

    What cannot be stored yet waits in memory, and a finding says so; every entry is a line of the server's log
    besides. `wall` gives seconds since the epoch.
    """

    def __init__(self, store: StoreInterface, wall: Callable[[], float]) -> None:
        self._store = store
        self._wall = wall
        self._wrong_tokens = WrongTokens(store.audit, wall)

    def record(
        self,
        *,
        by: str,
        address: str = "",
        method: str,
        route: str,
        subject: str = "",
        summary: str = "",
        status: int,
        message: str = "",
    ) -> None:
        """Somebody has asked for something, and it has ended; in the words of `AuditEntry`."""
        facts = {
            "by": by,
            "address": address,
            "method": method,
            "route": route,
            "subject": subject,
            "summary": summary,
            "status": status,
            "message": message,
        }
        # `message` is the line itself in JSON logs.
        log.info(
            "asked", **{"answer" if name == "message" else name: value for name, value in facts.items() if value}
        )
        entry = AuditEntry(
            id=0, at=self._wall(), by=by, address=address, method=method, route=route, subject=subject,
            summary=summary, status=status, message=message,
        )  # fmt: skip
        try:
            self._store.audit.add(entry)
        except StoreError as error:
            log.error("an entry of the audit log is not stored", reason=error.what)

    def wrong_token(self, address: str, method: str, route: str) -> None:
        """A token that nobody knows came from an address."""
        try:
            self._wrong_tokens.add(address, method, cleaned(route, route))
        except StoreError as error:
            log.error("an entry of the audit log is not stored", reason=error.what)

    def write_counts(self) -> None:
        """Write what has been counted and not written: before the store is read, and before it is closed."""
        self._wrong_tokens.write()

    async def view(
        self,
        *,
        by: str | None,
        subject: str | None,
        from_s: float | None,
        to_s: float | None,
        before: int | None,
        limit: int,
    ) -> list[AuditEntry]:
        """Entries that match all that is given, newest first. Raises StoreError."""
        self.write_counts()
        return await self._store.audit.entries(
            by=by, subject=subject, from_s=from_s, to_s=to_s, before=before, limit=limit
        )
