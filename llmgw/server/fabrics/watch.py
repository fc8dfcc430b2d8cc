"""The loop that asks the fabrics about themselves, and carries what follows to memory and placement.

Whom to ask is `schedule.py`'s, what follows `book.py`'s business; parsing is done in threads, one map at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import structlog

from llmgw.fabric.records import parse_guid
from llmgw.fabric.report import judge
from llmgw.fleet.model import NodeState
from llmgw.messages.agent import Port
from llmgw.server.fabrics.comparing import compare_map
from llmgw.server.fabrics.facts import fabric_facts
from llmgw.server.fabrics.known import FabricMap, KnownFabric
from llmgw.server.fabrics.manager_changes import MASTER_CHANGED
from llmgw.server.fabrics.reading import UnreadableError, managers_of, map_of
from llmgw.server.fabrics.recognition import MapTarget, Master
from llmgw.server.fabrics.remembering import cabling_text, remember, restore
from llmgw.server.fabrics.schedule import Schedule
from llmgw.server.fabrics.usable_ports import PortAt, ports_in_init, usable_ports
from llmgw.server.hub import Hub
from llmgw.server.hub_error import HubError
from llmgw.server.store.fabric_records import FabricChange
from llmgw.server.store.fabrics import FabricStore

log = structlog.get_logger("fabrics")

LOOK_S = 1.0
MANAGERS_WAIT_S = 40.0
MAP_WAIT_S = 75.0
"""The agent gives the tool 60 s."""
LOOK_ANEW_S = 5.0
"""What lasts too long becomes a problem, though no port says anything new."""
DOUBTS_WAIT_S = 5.0
"""A port that flaps does not have all of placement's facts made anew every second."""
REFRESH_S = 60.0
"""Doubts end with time."""
REJUDGE_S = 10.0
"""After nodes or offers changed, maps are judged anew, at most so often."""


class Tests(Protocol):
    """Bandwidth tests, as far as they speak against nodes. `version` grows with each result."""

    @property
    def version(self) -> int: ...

    def doubts(self) -> Mapping[tuple[str, str], str]: ...


class FabricWatch:
    """Watches all fabrics. `tests` are those between nodes."""

    def __init__(
        self,
        hub: Hub,
        store: FabricStore,
        *,
        managers_interval_s: float,
        map_interval_s: float,
        tests: Tests,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._hub = hub
        self._store = store
        self._managers: Schedule[Master] = Schedule(managers_interval_s, random)
        self._maps: Schedule[MapTarget] = Schedule(map_interval_s, random)
        self._tests = tests
        self._tasks: set[asyncio.Task[None]] = set()
        self._analysing = asyncio.Lock()
        self._seen: object = None
        self._seen_at = float("-inf")
        self._told_places: tuple[int, int] | None = None
        self._told_doubts: tuple[int, int] | None = None
        self._told_at = float("-inf")
        self._remembered = -1
        self._judged = -1
        self._judged_at = float("-inf")
        restore(hub.fabrics, store)

    async def run(self) -> None:
        """Until cancelled. A defect here is logged, and costs no more than what is known of fabrics."""
        try:
            while True:
                try:
                    self._look()
                except Exception:
                    log.exception("looking after the fabrics failed")
                await asyncio.sleep(LOOK_S)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _look(self) -> None:
        hub, book = self._hub, self._hub.fabrics
        now, wall = hub.clock.monotonic(), hub.clock.wall()
        self._store.add_changes([book.port_changed(change, port) for port, change in hub.ports.drain()])
        nodes = tuple((node.state, node.session) for node in hub.fleet.nodes.values())
        seen = (hub.ports.version, book.version, nodes)
        # Some 3,000 ports take tens of milliseconds: not every second for nothing.
        if seen != self._seen or now - self._seen_at >= LOOK_ANEW_S:
            self._look_at_ports(wall)
            self._seen, self._seen_at = seen, now
        for master, port in self._managers.due(now, book.masters()):
            self._begin(self._ask_managers(master, port))
        for target, port in self._maps.due(now, book.map_targets()):
            self._begin(self._ask_map(target, port))
        if hub.ports.fleet_version != self._judged and now - self._judged_at >= REJUDGE_S:
            self._judged, self._judged_at = hub.ports.fleet_version, now
            self._begin(self._judge_again())
        places, doubts = (book.version, hub.ports.fleet_version), (hub.ports.version, self._tests.version)
        wait_s = DOUBTS_WAIT_S if doubts != self._told_doubts else REFRESH_S
        if places != self._told_places or now - self._told_at >= wait_s:
            self._told_places, self._told_doubts, self._told_at = places, doubts, now
            hub.set_fabric_facts(fabric_facts(hub.fleet, book, hub.ports, wall, self._tests.doubts()))
        self._remember()

    def _remember(self) -> None:
        if self._hub.fabrics.version != self._remembered:
            self._remembered = self._hub.fabrics.version
            remember(self._hub.fabrics, self._store)

    def _look_at_ports(self, wall: float) -> None:
        ports = self._hub.ports
        in_init = [
            (at, ports.name_of(at.node, at.adapter, at.port) or (names[0] if len(names) == 1 else None), port)
            for at, port, names in ports_in_init(self._hub.fleet)
        ]
        self._hub.fabrics.look(usable_ports(self._hub.fleet), in_init, wall)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception:
                log.exception("a question to a fabric failed")

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_managers(self, master: Master, port: PortAt) -> None:
        hub, well = self._hub, False
        try:
            answer = await hub.questions.ask_fabric(
                port.node, "managers", port.adapter, port.port, MANAGERS_WAIT_S
            )
            said = await asyncio.to_thread(managers_of, answer)
            well = said.answer == "ok"
            self._keep(hub.fabrics.managers_said(master, said, hub.clock.wall()))
        except HubError as error:
            hub.fabrics.managers_not_asked(master, error.message)
        except UnreadableError as error:
            hub.fabrics.managers_not_asked(master, _said_by(port, error))
        finally:
            self._managers.answered(master, hub.clock.monotonic(), well=well)

    async def _ask_map(self, target: MapTarget, port: PortAt) -> None:
        hub, well = self._hub, False
        try:
            answer = await hub.questions.ask_fabric(port.node, "map", port.adapter, port.port, MAP_WAIT_S)
            at = hub.clock.wall()
            async with self._analysing:
                fabric = hub.fabrics.known.get(target.physical or "")
                names = {target.master.name} if target.master is not None else set()
                names |= set(fabric.names) if fabric is not None else set()
                read = await asyncio.to_thread(
                    map_of, answer, self._foreign_managers(fabric), self._inventories(), self._orders(names)
                )
                if hub.fabrics.is_strangers(target, self._guids(port), read.switches, read.guids):
                    raise UnreadableError(
                        f"the map shows neither {port.adapter} itself nor anything that is known of its fabric, "
                        "and is not used; run ibnetdiscover there by hand, and see which one the agent runs "
                        "(discovery.ibnetdiscover in agent.yaml)"
                    )
                name = min(names, default=port.node)
                fabric = hub.fabrics.identify(target, name, read.switches, read.guids)
                if fabric is None:
                    raise UnreadableError("nothing tells whose the map is: it has no switch and no manager")
                made = FabricMap(at, str(port), read.analysis)
                before, accepted = fabric.cabling, fabric.accepted
                compared = await asyncio.to_thread(compare_map, read.cabling, before, accepted)
                if accepted is not fabric.accepted:  # somebody accepted meanwhile
                    compared = await asyncio.to_thread(compare_map, read.cabling, before, fabric.accepted)
                changes = hub.fabrics.mapped(fabric, made, compared.kept, compared.changes, compared.differences)
                if compared.kept != before:
                    text = await asyncio.to_thread(cabling_text, compared.kept)
                    self._store.put(fabric.id, cabling=text, cabling_at=at)
            self._keep(changes)
            well = True
        except HubError as error:
            hub.fabrics.not_mapped(target, error.message)
        except UnreadableError as error:
            hub.fabrics.not_mapped(target, _said_by(port, error))
        finally:
            self._maps.answered(target, hub.clock.monotonic(), well=well)

    async def _judge_again(self) -> None:
        """Other nodes have come, or offer other ports: whose the adapters on the maps are may have changed."""
        for fabric in list(self._hub.fabrics.known.values()):
            async with self._analysing:
                made = fabric.map
                if made is None:
                    continue
                orders = self._orders(set(fabric.names))
                analysis = await asyncio.to_thread(
                    judge, made.analysis.topology, self._foreign_managers(fabric), self._inventories(), orders
                )
                fabric.map = FabricMap(made.at, made.asked, analysis)
                self._hub.fabrics.version += 1

    def _keep(self, changes: list[FabricChange]) -> None:
        # Together with what it changes: after a server that is killed, history never knows more than the rest.
        self._remember()
        self._store.add_changes(changes)
        for change in changes:
            log.info(change.kind, fabric=change.name or change.fabric, what=change.what)
            if change.kind == MASTER_CHANGED:
                self._hub.fabric_event(change.name or change.fabric or "", change.kind, change.what)

    def _inventories(self) -> dict[str, list[Port]]:
        return {node.node_id: node.inventory.ports for node in self._hub.fleet.nodes.values()}

    def _guids(self, asked: PortAt) -> list[int]:
        """What a port may be called on a map."""
        node = self._hub.fleet.nodes.get(asked.node)
        texts = [
            text
            for port in (node.inventory.ports if node is not None else ())
            if (port.adapter, port.port) == (asked.adapter, asked.port)
            for text in (port.port_guid, port.node_guid)
        ]
        return [guid for text in texts if (guid := parse_guid((text or "").replace(":", ""))) is not None]

    def _orders(self, names: set[str]) -> dict[str, list[str]]:
        """Each node's adapters on a fabric, in the order in which they were declared."""
        return {
            node.node_id: adapters
            for node in self._hub.fleet.nodes.values()
            if node.state is not NodeState.LOST
            and (
                adapters := [
                    adapter.partition(":")[0]
                    for offer in node.inventory.fabrics
                    if offer.usable and offer.name in names
                    for adapter in offer.adapters
                ]
            )
        }

    def _foreign_managers(self, fabric: KnownFabric | None) -> frozenset[int]:
        """Managers whose hosts are no compute: not those that run on a node of this fleet."""
        if fabric is None or fabric.managers is None:
            return frozenset()
        ours = {
            parse_guid((port.port_guid or "").replace(":", ""))
            for node in self._hub.fleet.nodes.values()
            for port in node.inventory.ports
        }
        return fabric.managers.guids - {guid for guid in ours if guid is not None}


def _said_by(port: PortAt, error: UnreadableError) -> str:
    """An agent's own sentences begin with the node."""
    return f"{port}: {str(error).removeprefix(f'{port.node}: ')}"
