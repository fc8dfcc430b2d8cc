"""The one owner of the catalog: plans revisions, makes them one at a time, and lets the newest rule."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from llmgw.config.catalog import Catalog
from llmgw.config.errors import ConfigError
from llmgw.config.load import catalog_of
from llmgw.fleet.events import Event
from llmgw.fleet.foresight import copied
from llmgw.fleet.plan import plan_catalog, ready_stops
from llmgw.messages.admin import (
    AppliedCatalog,
    ApplyCatalog,
    CatalogPlan,
    CatalogRevisionView,
    CatalogView,
    PlanCatalog,
)
from llmgw.messages.findings import Finding
from llmgw.messages.routes import RouteEndpoint
from llmgw.server.admin.backend import AdminError
from llmgw.server.catalogs import CatalogError, static_endpoints
from llmgw.server.hub import Hub
from llmgw.server.store.errors import StoreError
from llmgw.server.store.interface import StoreInterface
from llmgw.server.store.records import CatalogRevision

NEEDS_CONFIRMATION = "needs_confirmation"


class CatalogOwner:
    """Every change of the catalog goes through here, whoever asks: `apply`, `rollback`, `scale`, SIGHUP.

    `revision` is the number of the catalog that rules in the hub. `aside` runs what takes long: in a thread, or
    at once under a virtual clock.
    """

    def __init__(
        self,
        hub: Hub,
        store: StoreInterface,
        *,
        revision: int,
        config_path: Path | None,
        aside: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self.revision = revision
        self.taken_back: str | None = None
        """What history says of the ruling revision when the server made it by itself: a rollout was stopped."""
        self._hub = hub
        self._store = store
        self._config_path = config_path
        self._aside = aside
        # From reading what rules to committing what follows it, nobody else may make a revision.
        self._turn = asyncio.Lock()
        # One plan at a time: each may keep a processor busy for seconds.
        self._reckoning = asyncio.Lock()

    # Reading.

    def findings(self) -> list[Finding]:
        """That a rollout was taken back, until the next revision."""
        if self.taken_back is None:
            return []
        return [
            Finding(
                check="rollout-taken-back",
                severity="warning",
                where=f"catalog revision {self.revision}",
                what=f"revision {self.revision} was made by the server itself: {self.taken_back}",
                why="the old form goes on serving, and what was applied does not rule",
                remedy="`llmgw ctl catalog show` has what rules; mend the profile and `llmgw ctl apply` it again",
            )
        ]

    async def view(self, number: int | None) -> CatalogView:
        """A revision with its content; None is the ruling one. Raises AdminError 404."""
        number = self.revision if number is None else number
        catalog = await self._content(number)
        entry = (await self._entries(number + 1, 1))[0]
        return CatalogView(
            revision=number,
            at=entry.at,
            by=entry.by,
            note=entry.note,
            ruling=number == self.revision,
            models=catalog.model_dump(mode="json")["models"],
        )

    async def revisions(self, before: int | None, limit: int) -> list[CatalogRevisionView]:
        """Newest first; `before` is a number, to page by key."""
        return [
            CatalogRevisionView(
                revision=entry.number,
                at=entry.at,
                by=entry.by,
                note=entry.note,
                ruling=entry.number == self.revision,
            )
            for entry in await self._entries(before, limit)
        ]

    async def plan(self, wish: PlanCatalog) -> CatalogPlan:
        """What the wished catalog would do. Raises AdminError 400 for a bad one, 404 for no such revision."""
        catalog = await self._wished(wish.models, wish.revision)
        self._static(catalog)
        return await self._plan(catalog)

    # Changing.

    async def apply(self, wish: ApplyCatalog, *, by: str) -> AppliedCatalog:
        """Make the wished catalog the next revision.

        Raises AdminError 400 for one that is none, 404 for no such revision, 409 when another revision than
        `wish.base` rules or when the plan must be confirmed and is not.
        """
        catalog = await self._wished(wish.models, wish.revision)
        async with self._turn:
            if wish.base != self.revision:
                raise AdminError(409, "stale_plan", await self._stale(wish.base))
            self._static(catalog)
            plan = await self._plan(catalog)
            if plan.unchanged:
                message = f"revision {self.revision} holds exactly this already; nothing was changed"
                return AppliedCatalog(message=message, revision=self.revision, warnings=plan.warnings, plan=plan)
            note = wish.note
            if wish.revision is not None:
                note = f"rollback to revision {wish.revision}" + (f": {note}" if note else "")
            number = await self._take(catalog, by, note, wish.confirmed)
        return AppliedCatalog(
            message=f"catalog revision {number} rules", revision=number, warnings=plan.warnings, plan=plan
        )

    async def change(
        self, edit: Callable[[Catalog], Catalog], by: str, note: str, *, confirmed: bool = False
    ) -> int | None:
        """Make what `edit` makes of the ruling catalog the next revision.

        Returns its number, or None when it is the same catalog. `edit` may raise; nothing is changed then. Raises
        AdminError 409 when it must be confirmed and is not, CatalogError for a key file that cannot be read.
        """
        async with self._turn:
            catalog = edit(self._hub.catalog)
            return None if catalog == self._hub.catalog else await self._take(catalog, by, note, confirmed)

    # Inside.

    async def _take(self, catalog: Catalog, by: str, note: str, confirmed: bool) -> int:
        static = static_endpoints(catalog, self._config_path)
        # Judged here and on the fleet of this moment: since the plan was made replicas may have become ready.
        confirm = ready_stops(self._hub.fleet, self._hub.catalog, catalog).confirm
        if confirm is not None and not confirmed:
            raise AdminError(
                409, NEEDS_CONFIRMATION, f"not applied: {confirm}; confirm it (`--yes`) if that is meant"
            )
        # Once on its way it is carried through, also when whoever asked hangs up: disk and memory must agree.
        return await asyncio.shield(asyncio.ensure_future(self._commit(catalog, static, by, note)))

    async def _commit(self, catalog: Catalog, static: dict[str, list[RouteEndpoint]], by: str, note: str) -> int:
        try:
            number = await self._store.add_catalog_revision(catalog, by, note, self._hub.clock.wall())
        except StoreError as error:
            raise AdminError(503, "store", str(error)) from None
        self.revision = number
        self.taken_back = None
        event = Event("catalog", f"revision {number}", "applied", f"{note}, by {by}" if note else f"by {by}")
        self._hub.set_catalog(catalog, static, event)
        return number

    async def _plan(self, catalog: Catalog) -> CatalogPlan:
        async with self._reckoning:
            hub, base = self._hub, self.revision
            # On a copy and aside: hundreds of replicas that roll are seconds of reckoning.
            fleet, before, now = copied(hub.fleet), hub.catalog, hub.clock.monotonic()
            plan: CatalogPlan = await self._aside(
                plan_catalog, fleet, before, catalog, base=base, now=now, settings=hub.settings
            )
            return plan

    async def _wished(self, models: list[dict[str, Any]] | None, revision: int | None) -> Catalog:
        if revision is not None:
            return await self._content(revision)
        try:
            catalog: Catalog = await self._aside(catalog_of, models)
            return catalog
        except ConfigError as error:
            raise AdminError(400, "bad_catalog", "; ".join(str(error).splitlines())) from None

    async def _content(self, number: int) -> Catalog:
        try:
            catalog = await self._store.catalog_revision(number) if number > 0 else None
        except StoreError as error:
            raise AdminError(409, "unreadable_revision", str(error)) from None
        if catalog is None:
            there = "there is only revision 1" if self.revision == 1 else f"there are 1 to {self.revision}"
            raise AdminError(404, "unknown_revision", f"the catalog never had a revision {number}; {there}")
        return catalog

    async def _entries(self, before: int | None, limit: int) -> list[CatalogRevision]:
        try:
            return await self._store.catalog_revisions(before=before, limit=limit)
        except StoreError as error:
            raise AdminError(503, "store", str(error)) from None

    def _static(self, catalog: Catalog) -> None:
        try:
            static_endpoints(catalog, self._config_path)
        except CatalogError as error:
            raise AdminError(400, "bad_catalog", str(error)) from None

    async def _stale(self, base: int) -> str:
        if base > self.revision:
            return f"the plan names revision {base}, and only {self.revision} rules; make the plan again"
        (entry,) = await self._entries(None, 1)
        note = f" ({entry.note})" if entry.note else ""
        return (
            f"the plan was made against revision {base}, and meanwhile {entry.by} made revision "
            f"{self.revision}{note}; look at what changed (llmgw ctl catalog show) and apply again"
        )
