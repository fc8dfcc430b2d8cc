"""Fabrics as the admin API sees them: what is known, what changed, and accepting how they are cabled."""

from __future__ import annotations

import asyncio

import structlog

from llmgw.fabric.changes import cabling_of
from llmgw.fabric.report import FabricReport, counted, report_fabric
from llmgw.messages.admin import Done
from llmgw.messages.admin_fabrics import CablingDifference, FabricChanges, FabricView
from llmgw.server.admin.backend import AdminError
from llmgw.server.fabrics.known import FabricMap, KnownFabric
from llmgw.server.fabrics.problems import label
from llmgw.server.fabrics.remembering import cabling_text
from llmgw.server.fabrics.usable_ports import link_layers, usable_ports
from llmgw.server.fabrics.views import ETHERNET, fabric_views, map_view
from llmgw.server.hub import Hub
from llmgw.server.store.errors import StoreError
from llmgw.server.store.interface import StoreInterface

log = structlog.get_logger("fabrics")

STORE_WAIT_S = 10.0
NAMES_SHOWN_MAX = 20


class FabricsKnown:
    """`AdminFabrics` over the hub and the store. A name is the operator's, or a physical fabric's id."""

    def __init__(self, hub: Hub, store: StoreInterface) -> None:
        self._hub = hub
        self._store = store

    def known(self) -> list[KnownFabric]:
        """Every physical fabric, for pages."""
        return sorted(self._hub.fabrics.known.values(), key=lambda fabric: (fabric.names, fabric.id))

    async def views(self) -> list[FabricView]:
        """Every fabric that a node declares."""
        try:
            changed = await self._store.fabric_watch.counts(self._hub.clock.wall())
        except StoreError as error:
            log.warning("fabrics are told without how much changed", reason=error.what)
            changed = {}
        now = self._hub.clock.wall()
        made = {fabric.id: fabric.map for fabric in self.known() if fabric.map is not None}
        # Counting a large map takes a while.
        maps = {fabric_id: await asyncio.to_thread(map_view, one, now) for fabric_id, one in made.items()}
        return fabric_views(self._hub, changed, maps)

    async def changes(self, name: str, before: int | None, limit: int) -> FabricChanges:
        """What changed on a fabric, newest first. Raises AdminError 404."""
        known = self._known(name)
        ids = [fabric.id for fabric in known]
        # Of an id only what is its own; what a name's ports told before its fabric was known is the name's.
        names = [] if name in ids else [name]
        changes = await self._store.fabric_watch.changes(
            ids=ids, names=names, now=self._hub.clock.wall(), before=before, limit=limit
        )
        accepted = next((fabric for fabric in known if fabric.accepted_at is not None), None)
        return FabricChanges(
            name=name,
            ids=ids,
            accepted_at=accepted.accepted_at if accepted is not None else None,
            accepted_by=accepted.accepted_by if accepted is not None else None,
            differences=[
                CablingDifference(kind=change.kind, what=change.what)
                for fabric in known
                for change in fabric.differences
            ],
            changes=changes,
        )

    async def accept(self, name: str, *, by: str) -> Done:
        """Pin the cabling of the newest map: every later difference is a finding. Raises AdminError."""
        fabric, made = self._mapped(name)
        topology = made.analysis.topology
        cabling = await asyncio.to_thread(cabling_of, topology)
        text = await asyncio.to_thread(cabling_text, cabling)
        now, store = self._hub.clock.wall(), self._store.fabric_watch
        was = (fabric.accepted, fabric.accepted_at, fabric.accepted_by)
        store.put(fabric.id, accepted=text, accepted_at=now, accepted_by=by)
        try:
            await self._store.flush(timeout_s=STORE_WAIT_S)
        except StoreError as error:
            # What cannot be stored now would be later, behind the operator's back.
            before = cabling_text(was[0]) if was[0] is not None else None
            store.put(fabric.id, accepted=before, accepted_at=was[1], accepted_by=was[2])
            raise AdminError(503, "store", f"nothing was changed, since it cannot be stored: {error}") from None
        self._hub.fabrics.accept(fabric, cabling, now, by)
        counts = f"{len(topology.of_kind('switch'))} switches, {len(topology.links)} cables"
        self._hub.fabric_event(
            fabric.names[0] if fabric.names else fabric.id, "cabling accepted", f"{counts}, by {by}"
        )
        warnings = []
        if made.analysis.slow:
            slow = counted(len(made.analysis.slow), "cable", "cables")
            warnings.append(f"accepted with {slow} below the rate that both ends could do")
        if not cabling.whole:
            warnings.append("the map is not whole: what it lacks will be a difference when it is seen again")
        return Done(message=f"the cabling of {label(fabric)} is accepted: {counts}", warnings=warnings)

    async def map(self, name: str) -> FabricReport:
        """What `inspect fabric` says of the newest map. Raises AdminError."""
        return await asyncio.to_thread(report_fabric, self._mapped(name)[1].analysis)

    # Inside.

    def _known(self, name: str) -> list[KnownFabric]:
        """The physical fabrics of a name; none of one that is declared and not known. Raises AdminError 404."""
        found = self._hub.fabrics.named(name)
        declared = {offer.name for node in self._hub.fleet.nodes.values() for offer in node.inventory.fabrics}
        if found or name in declared:
            return found
        names = sorted(declared | {one for fabric in self._hub.fabrics.known.values() for one in fabric.names})
        shown = ", ".join(names[:NAMES_SHOWN_MAX])
        known = f"the fabrics are {shown}" if names else "no node declares one"
        raise AdminError(404, "unknown-fabric", f"there is no fabric {name!r}; {known}")

    def _mapped(self, name: str) -> tuple[KnownFabric, FabricMap]:
        known = self._known(name)
        if len(known) > 1:
            ids = ", ".join(fabric.id for fabric in known)
            raise AdminError(
                409,
                "several-fabrics",
                f"{name} stands for {len(known)} physical fabrics; name one by its id: {ids}",
            )
        if not known and link_layers(self._hub.fleet).get(name) == ETHERNET:
            raise AdminError(409, "no-map", f"{name} is Ethernet (RoCE), which has no subnet manager and no map")
        fabric = known[0] if known else None
        if fabric is not None and fabric.map is not None:
            return fabric, fabric.map
        raise AdminError(409, "not-mapped", f"{name} is not mapped yet: {self._why_not(name, fabric)}")

    def _why_not(self, name: str, fabric: KnownFabric | None) -> str:
        ports = [
            usable
            for usable in usable_ports(self._hub.fleet)
            if usable.name == name or (fabric is not None and usable.name in fabric.names)
        ]
        if not ports:
            return "no agent is healthy enough to ask: no ready node has a usable InfiniBand port on it"
        if not any(usable.askable for usable in ports):
            nodes = ", ".join(sorted({usable.at.node for usable in ports})[:NAMES_SHOWN_MAX])
            return f"no agent can be asked; update llmgw on one of {nodes}"
        unknown = self._hub.fabrics.names.get(name)
        error = (
            fabric.map_error if fabric is not None else (unknown.map_error or unknown.error) if unknown else None
        )
        return error or "it is asked for now; try again in a moment"
