"""Which physical fabric ports and maps are of: what was said, held together by overlap. Pure.

The rule itself is `llmgw.fabric.identity`; here stands what is held against it, and when that is out of date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from llmgw.fabric.identity import Observation, PhysicalFabric, settle_identities, shares_switches

FAILOVER_S = 90.0
"""A failover takes most of a minute: for so long nothing that is said of managers is held against a fabric."""
_NEW = "new"
"""In place of an id: the map that was just taken."""


@dataclass(frozen=True, slots=True)
class Master:
    """Ports that name the same master: what one question is put to."""

    name: str
    sm_lid: int | None
    physical: str | None
    """The fabric on whose map the ports are; None: on no map."""


@dataclass(frozen=True, slots=True)
class MapTarget:
    """A fabric to be mapped; before its identity is known, the ports that name one master."""

    physical: str | None
    master: Master | None = None


@dataclass(slots=True)
class Said:
    """The last word on the managers that ports of one master got."""

    guids: frozenset[int] = frozenset()
    master: str | None = None
    """Its GUID."""
    ok_at: float = float("-inf")
    fabric: str | None = None
    ended: bool = False
    """They were asked, and no identity followed."""


class Recognition:
    """What was said by whom, and the identities that follow. Times are seconds since the epoch."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        """Two names for one fabric, one name for two: sentences that hold the fabrics' ids."""
        self._identities: list[PhysicalFabric] = []
        self._said: dict[Master, Said] = {}
        self._mapped: dict[str, Observation] = {}

    def restore(self, fabric_id: str, managers: Iterable[int], switches: Iterable[int]) -> None:
        """Take a fabric that an earlier server knew."""
        self._identities.append(PhysicalFabric(fabric_id, frozenset(managers), frozenset(switches)))

    def identity(self, fabric_id: str) -> PhysicalFabric:
        """By what a fabric is recognised."""
        return next((one for one in self._identities if one.id == fabric_id), PhysicalFabric(fabric_id))

    def said(self, master: Master) -> Said:
        """What the ports of a master were last told."""
        return self._said.setdefault(master, Said())

    def fabric_of(self, master: Master) -> str | None:
        """The fabric that ports of a master are on, by their map or by what they were told."""
        said = self._said.get(master)
        return master.physical or (said.fabric if said is not None else None)

    def ended(self, master: Master) -> bool:
        """Whether ports of a master were asked, and no identity followed."""
        said = self._said.get(master)
        return said is not None and said.ended

    def keep(self, masters: Collection[Master], fabrics: Collection[str]) -> None:
        """Forget what is said of masters that no port names any more, and the maps of fabrics without ports."""
        self._said = {master: said for master, said in self._said.items() if master in masters}
        self._mapped = {fabric_id: seen for fabric_id, seen in self._mapped.items() if fabric_id in fabrics}

    def forget(self, fabric_id: str) -> None:
        """A fabric is no longer recognised."""
        self._identities = [one for one in self._identities if one.id != fabric_id]
        self._mapped.pop(fabric_id, None)

    def settle(self, names_on: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
        """Let overlaps decide. `names_on`: a fabric → the names under which ports on its map are offered.

        Returns each name's fabrics; names that nothing was said of are not in it.
        """
        seen = []
        for master, said in self._said.items():
            if said.guids:
                # What a port on a map is told is of the managers of that map's fabric.
                on_map = self.identity(master.physical).switches if master.physical else frozenset[int]()
                seen.append(Observation(master.name, said.guids, on_map))
        for fabric_id, mapped in self._mapped.items():
            names = sorted(names_on.get(fabric_id, ())) or [mapped.name]
            managers = mapped.managers if fabric_id == _NEW else self._managers_of(fabric_id)
            seen += [Observation(name, managers, mapped.switches) for name in names]
        settled = settle_identities(self._identities, seen)
        self._identities, self.problems = settled.known, settled.problems
        owner = {guid: one.id for one in settled.known for guid in one.managers}
        for said in self._said.values():
            found = {owner[guid] for guid in said.guids if guid in owner}
            said.fabric = min(found) if found else said.fabric
        return {name: ids for name, ids in settled.fabric_of_name.items() if ids}

    def is_strangers(self, target: MapTarget, switches: frozenset[int], on_map: Collection[int]) -> bool:
        """Whether a map shows nothing that is known of its target: no manager of it, and not its switches."""
        if target.physical is not None:
            known = self.identity(target.physical)
        else:
            told = self.said(target.master).guids if target.master else frozenset[int]()
            known = PhysicalFabric("", told)
        if not known.managers and not known.switches:
            return False
        shared = bool(known.switches and switches) and shares_switches(known.switches, switches)
        return not shared and known.managers.isdisjoint(on_map)

    def mapped(self, target: MapTarget, name: str, switches: frozenset[int], on_map: Collection[int]) -> None:
        """A map of a target: its switches, and all GUIDs that are on it.

        The target's managers are tied to it, and so to the identity, when its switches are the target's, or are
        the first that are seen of it. Else only managers that are on the map themselves: the port that was asked
        may just have been cabled to another fabric.
        """
        self._mapped.pop(target.physical or "", None)
        if target.physical is not None:
            known = self.identity(target.physical)
            told = known.managers
            ours = not known.switches or (bool(switches) and shares_switches(known.switches, switches))
        else:
            told, ours = (self.said(target.master).guids if target.master else frozenset()), True
        managers = told if ours else told & frozenset(on_map)
        if managers or switches:
            self._mapped[_NEW] = Observation(name, managers, switches)

    def place_map(self, target: MapTarget) -> str | None:
        """After settling: whose the map just taken is. None: nothing tells."""
        seen = self._mapped.pop(_NEW, None)
        if seen is None:
            return target.physical
        by_switches = (one.id for one in self._identities if seen.switches and one.switches >= seen.switches)
        by_managers = (one.id for one in self._identities if seen.managers and one.managers & seen.managers)
        found = next(by_switches, None) or next(by_managers, None)
        if found is not None:
            self._mapped[found] = seen
        return found

    def _managers_of(self, fabric_id: str) -> frozenset[int]:
        """All that are remembered of a fabric, but those that ports of another are told of now."""
        others = (
            said.guids
            for master, said in self._said.items()
            if (master.physical or said.fabric or fabric_id) != fabric_id
        )
        return self.identity(fabric_id).managers.difference(*others)

    def outvoted(self, master: Master, ports: Mapping[Master, int], now: float) -> bool:
        """Whether more ports of a fabric name, as freshly, another master.

        Two managers that both answer must not take turns in history.
        """
        mine = self.said(master)
        votes: Counter[str | None] = Counter()
        for key, said in self._said.items():
            if said.fabric == mine.fabric and said.ok_at >= now - FAILOVER_S:
                votes[said.master] += ports.get(key, 0)
        return any(count > votes[mine.master] for count in votes.values())

    def others_answered(self, master: Master, fabric_id: str, now: float) -> bool:
        """Whether other ports of a fabric have had an answer within the time that a failover takes."""
        return any(
            key != master and said.fabric == fabric_id and said.ok_at >= now - FAILOVER_S
            for key, said in self._said.items()
        )
