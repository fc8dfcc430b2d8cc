"""All fabrics that are known, and what follows for them from ports, managers' answers and maps. Pure.

Times are seconds since the epoch, handed in. What history keeps is returned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from llmgw.fabric.changes import Cabling, Change
from llmgw.fabric.identity import PhysicalFabric
from llmgw.fabric.managers import Managers
from llmgw.fabric.records import parse_guid
from llmgw.messages.agent import Port
from llmgw.messages.findings import Finding, worst_first
from llmgw.server.fabrics.known import Disagreement, FabricMap, KnownFabric, KnownName
from llmgw.server.fabrics.manager_changes import (
    MASTER_CHANGED,
    manager_change,
    manager_changes,
    manager_label,
)
from llmgw.server.fabrics.problems import fabric_findings, name_findings
from llmgw.server.fabrics.recognition import FAILOVER_S, MapTarget, Master, Recognition
from llmgw.server.fabrics.usable_ports import PortAt, UsablePort
from llmgw.server.store.fabric_records import Area, FabricChange

NAMELESS_MAX = 32
"""Fabrics that no port is on any more and that no operator has accepted: the rest is forgotten, oldest first."""


class FabricBook:
    """What is known. `version` grows with whatever may matter to placement or memory."""

    def __init__(self) -> None:
        self.known: dict[str, KnownFabric] = {}
        self.names: dict[str, KnownName] = {}
        """Names that no physical fabric is known for."""
        self.version = 0
        self.forgotten: list[str] = []
        """Ids that memory may drop, until it has."""
        self._recognition = Recognition()
        self._on_map: dict[int, str] = {}
        self._ports: dict[Master, list[UsablePort]] = {}

    def restore(self, fabric: KnownFabric, managers: Iterable[int], switches: Iterable[int]) -> None:
        """Take a fabric that an earlier server knew."""
        self.known[fabric.id] = fabric
        self._recognition.restore(fabric.id, managers, switches)

    def identity(self, fabric_id: str) -> PhysicalFabric:
        """By what a fabric is recognised."""
        return self._recognition.identity(fabric_id)

    def of_port(self, name: str, port: Port) -> str | None:
        """The physical fabric of a port that is offered under a name: by the maps, else by what it was told."""
        return self._by_guid(port) or self._recognition.fabric_of(Master(name, port.sm_lid, None))

    def named(self, name: str) -> list[KnownFabric]:
        """The physical fabrics that a name, or an id, stands for; the one with the most nodes first."""
        if name in self.known:
            return [self.known[name]]
        found = [fabric for fabric in self.known.values() if name in fabric.names]
        return sorted(found, key=lambda fabric: (-len(fabric.nodes), fabric.id))

    # Whom to ask.

    def masters(self) -> dict[Master, list[PortAt]]:
        """What is asked about managers, and the ports that can be asked."""
        return {
            master: [usable.at for usable in ports if usable.askable] for master, ports in self._ports.items()
        }

    def map_targets(self) -> dict[MapTarget, list[PortAt]]:
        """What is mapped, and the ports that can be asked."""
        found: dict[MapTarget, list[PortAt]] = {}
        for master, ports in self._ports.items():
            physical = self._recognition.fabric_of(master)
            if physical is None and not self._recognition.ended(master):
                continue  # its managers, who name it, are asked first
            target = MapTarget(physical) if physical is not None else MapTarget(None, master)
            found.setdefault(target, []).extend(usable.at for usable in ports if usable.askable)
        return found

    # What follows.

    def look(
        self, ports: Sequence[UsablePort], in_init: Sequence[tuple[PortAt, str | None, Port]], now: float
    ) -> None:
        """Take the ports as they are. `in_init`: those that are up without a manager, and the fabric's name."""
        grouped: dict[Master, list[UsablePort]] = defaultdict(list)
        for usable in ports:
            grouped[Master(usable.name, usable.port.sm_lid, self._by_guid(usable.port))].append(usable)
        self._ports = dict(grouped)
        lids: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        nodes: dict[str, set[str]] = defaultdict(set)
        for master, group in grouped.items():
            fabric_id = self._recognition.fabric_of(master)
            if fabric_id is None:
                continue
            nodes[fabric_id].update(usable.at.node for usable in group)
            if master.sm_lid:
                lids[fabric_id][master.sm_lid] += [str(usable.at) for usable in group]
        self._recognition.keep(grouped.keys(), nodes.keys())
        init: dict[str, list[str]] = defaultdict(list)
        for at, name, port in in_init:
            named = self.named(name) if name else []
            where = self._by_guid(port) or (named[0].id if len(named) == 1 else name)
            if where is not None:
                init[where].append(str(at))
        for fabric in self.known.values():
            fabric.nodes = tuple(sorted(nodes[fabric.id]))
            fabric.in_init = tuple(init.pop(fabric.id, ()))
            fabric.disagreement = _disagreement(fabric.disagreement, lids[fabric.id], now)
        self._look_at_names(init)
        self._forget_nameless()
        for fabric in self.known.values():
            found = worst_first(self.findings_of(fabric, now))
            fabric.problems = [finding.what for finding in found]
            fabric.errors = [finding.what for finding in found if finding.severity == "error"]

    def managers_said(self, master: Master, said: Managers, now: float) -> list[FabricChange]:
        """Ports of a master were told this. Returns what changed."""
        entry = self._recognition.said(master)
        if said.answer != "ok" or said.master is None:
            entry.ended = True
            fabric = self.known.get(self._recognition.fabric_of(master) or "")
            if fabric is not None:
                return self._silent(fabric, master, said, now)
            if (name := self.names.get(master.name)) is not None:
                name.answer, name.error = said.answer, next(iter(said.problems), None)
            return []
        entry.guids, entry.master, entry.ok_at = said.guids, said.master.guid, now
        self._settle()
        fabric = self.known.get(entry.fabric or "")
        if fabric is None:
            entry.ended = True  # managers without a GUID name nothing
            return []
        counts = {key: len(ports) for key, ports in self._ports.items()}
        if self._recognition.outvoted(master, counts, now):
            return []
        changes = manager_changes(fabric, said, now)
        if any(change.kind == MASTER_CHANGED for change in changes):
            fabric.master_changed_at = now
            fabric.master_changes += 1
        fabric.answer, fabric.silent_since, fabric.managers_error = "ok", None, None
        fabric.managers, fabric.managers_at = said, now
        return self._counted(fabric, "managers", changes)

    def managers_not_asked(self, master: Master, why: str) -> None:
        """The question itself failed: no word of any manager."""
        self._recognition.said(master).ended = True
        fabric = self.known.get(self._recognition.fabric_of(master) or "")
        if fabric is not None:
            fabric.managers_error = why
        elif (name := self.names.get(master.name)) is not None:
            name.error = why

    def is_strangers(
        self, target: MapTarget, asked: Iterable[int], switches: frozenset[int], on_map: Collection[int]
    ) -> bool:
        """Whether a map cannot be what a port sees: neither the port is on it (`asked`, its GUIDs) nor what is
        known of its fabric. One that was cabled to another fabric is on that one's map.
        """
        return not set(asked) & set(on_map) and self._recognition.is_strangers(target, switches, on_map)

    def identify(
        self, target: MapTarget, name: str, switches: frozenset[int], on_map: Collection[int]
    ) -> KnownFabric | None:
        """Whose a map is; the port that was asked is offered under `name`. None: nothing tells."""
        self._recognition.mapped(target, name, switches, on_map)
        self._settle()
        found = self._recognition.place_map(target)
        return None if found is None else self.known.setdefault(found, KnownFabric(found))

    def mapped(
        self,
        fabric: KnownFabric,
        made: FabricMap,
        cabling: Cabling,
        changes: Sequence[Change],
        differences: Sequence[Change],
    ) -> list[FabricChange]:
        """A map of a fabric, and how it differs from the last one and from what was accepted."""
        fabric.map, fabric.map_error = made, None
        fabric.cabling, fabric.differences = cabling, tuple(differences)
        self._index_maps()
        self._settle()
        rows = [
            FabricChange(
                at=made.at,
                area="cabling",
                kind=change.kind,
                what=change.what,
                fabric=fabric.id,
                name=fabric.names[0] if fabric.names else None,
                node=change.node,
                port=change.port,
                before=change.before,
                after=change.after,
            )
            for change in changes
        ]
        return self._counted(fabric, "cabling", rows)

    def not_mapped(self, target: MapTarget, why: str) -> None:
        """A map failed; the last one stays."""
        fabric = self.known.get(target.physical or "")
        if fabric is not None:
            fabric.map_error = why
        elif target.master is not None and (name := self.names.get(target.master.name)) is not None:
            name.map_error = why

    def accept(self, fabric: KnownFabric, cabling: Cabling, now: float, by: str) -> None:
        """Pin a cabling: from now on what differs from it is a finding."""
        fabric.accepted, fabric.accepted_at, fabric.accepted_by = cabling, now, by
        fabric.differences = ()
        self.version += 1

    def port_changed(self, change: FabricChange, port: Port) -> FabricChange:
        """A change of a port with the fabric that it is on, counted."""
        named = self.named(change.name) if change.name else []
        found = self._by_guid(port) or (named[0].id if len(named) == 1 else None)
        if found is not None and found in self.known:
            self._counted(self.known[found], "port", [change])
        return msgspec.structs.replace(change, fabric=found)

    # What is wrong.

    def findings(self, now: float) -> list[Finding]:
        """Everything that is wrong with fabrics that ports are on, or that somebody accepted."""
        found = []
        for fabric in self.known.values():
            if fabric.nodes or fabric.in_init or fabric.accepted is not None:
                found += self.findings_of(fabric, now)
        for name in self.names.values():
            found += name_findings(name)
        return found

    def findings_of(self, fabric: KnownFabric, now: float) -> list[Finding]:
        """What is wrong with one fabric."""
        shared = [problem for problem in self._recognition.problems if fabric.id in problem]
        return fabric_findings(fabric, shared, now)

    # Inside.

    def _by_guid(self, port: Port) -> str | None:
        for text in (port.port_guid, port.node_guid):
            guid = parse_guid((text or "").replace(":", ""))
            if guid is not None and (found := self._on_map.get(guid)) is not None:
                return found
        return None

    def _settle(self) -> None:
        names_on: dict[str, set[str]] = defaultdict(set)
        for master in self._ports:
            if master.physical is not None:
                names_on[master.physical].add(master.name)
        of_name = self._recognition.settle(names_on)
        for ids in of_name.values():
            for fabric_id in ids:
                self.known.setdefault(fabric_id, KnownFabric(fabric_id))
        for fabric in self.known.values():
            told = [name for name, ids in of_name.items() if fabric.id in ids]
            # A fabric whose nodes are away keeps its names, unless they are seen to be another's.
            fabric.names = tuple(sorted(told or [name for name in fabric.names if name not in of_name]))
            for name in told:
                self.names.pop(name, None)
        self.version += 1

    def _index_maps(self) -> None:
        """GUID → the fabric on whose newest map the adapter is.

        One that is on two (it was just cabled to another, or two have one GUID) is on none: its port is asked.
        """
        found: dict[int, set[str]] = defaultdict(set)
        for fabric in self.known.values():
            for node in fabric.map.analysis.topology.of_kind("adapter") if fabric.map is not None else ():
                for guid in (node.guid, *node.port_guids.values()):
                    if guid is not None:
                        found[guid].add(fabric.id)
        self._on_map = {guid: next(iter(ids)) for guid, ids in found.items() if len(ids) == 1}

    def _silent(self, fabric: KnownFabric, master: Master, said: Managers, now: float) -> list[FabricChange]:
        """Nobody answered these ports. What was known stays."""
        fabric.managers_error = None
        if self._recognition.others_answered(master, fabric.id, now):
            return []
        recent = fabric.managers_at is not None and now - fabric.managers_at < FAILOVER_S
        fabric.answer = "none" if said.answer == "none" and not recent else "unknown"
        if fabric.silent_since is not None:
            return []
        fabric.silent_since = now
        last = fabric.managers.master if fabric.managers is not None else None
        what = "nothing answers for its managers" + (f"; last seen: {manager_label(last)}" if last else "")
        return self._counted(fabric, "managers", [manager_change(fabric, now, "managers silent", what)])

    def _counted(self, fabric: KnownFabric, area: Area, changes: list[FabricChange]) -> list[FabricChange]:
        self.version += 1
        if changes:
            fabric.changes[area] = fabric.changes.get(area, 0) + len(changes)
        return changes

    def _look_at_names(self, init: Mapping[str, Sequence[str]]) -> None:
        ports: dict[str, list[UsablePort]] = defaultdict(list)
        for master, group in self._ports.items():
            ports[master.name] += group
        taken = {name for fabric in self.known.values() for name in fabric.names}
        present = (ports.keys() | init.keys()) - taken
        self.names = {name: self.names.get(name, KnownName(name)) for name in sorted(present)}
        for name in self.names.values():
            name.in_init = tuple(init.get(name.name, ()))
            mine = ports[name.name]
            name.unasked = tuple(sorted({usable.at.node for usable in mine}))
            if any(usable.askable for usable in mine):
                name.unasked = ()

    def _forget_nameless(self) -> None:
        idle = [
            fabric
            for fabric in self.known.values()
            if not fabric.names and not fabric.nodes and fabric.accepted is None
        ]
        idle.sort(key=lambda fabric: fabric.managers_at or 0.0)
        for fabric in idle[: max(0, len(idle) - NAMELESS_MAX)]:
            del self.known[fabric.id]
            self._recognition.forget(fabric.id)
            self.forgotten.append(fabric.id)


def _disagreement(before: Disagreement | None, lids: Mapping[int, list[str]], now: float) -> Disagreement | None:
    if len(lids) < 2:
        return None
    return Disagreement(before.since if before is not None else now, {lid: lids[lid] for lid in sorted(lids)})
