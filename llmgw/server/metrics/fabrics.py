"""The physical fabrics: what their managers and maps tell. Bounded by the fabrics that are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from llmgw.fabric.report import Analysis
from llmgw.metrics.family import Family, Sample
from llmgw.server.fabrics.known import KnownFabric
from llmgw.server.fabrics.problems import label
from llmgw.server.metrics.source import Source

_LABELS = ("fabric", "id")
_BOUND = "fabrics"
_PORT_STATES = ("ACTIVE", "INIT", "ARMED", "DOWN", "unknown")
_AREAS = ("cabling", "managers", "port")

MASTER = Family(
    "llmgw_fabric_master_sm",
    "gauge",
    "The subnet manager that was last seen as the master, by the GUID of its port; always 1, absent where "
    "none is known",
    (*_LABELS, "guid"),
    _BOUND,
)
MANAGERS = Family(
    "llmgw_fabric_subnet_managers",
    "gauge",
    "Subnet managers as they were last seen, by state: master or standby",
    (*_LABELS, "state"),
    "2 × fabrics",
)
ANSWER = Family(
    "llmgw_fabric_managers_answer", "gauge", "1 while the fabric's managers answer, else 0", _LABELS, _BOUND
)
PROBLEMS = Family("llmgw_fabric_problems", "gauge", "What is wrong with the fabric", _LABELS, _BOUND)
MASTER_CHANGES = Family(
    "llmgw_fabric_master_changes_total",
    "counter",
    "How often another manager became the master",
    _LABELS,
    _BOUND,
)
CHANGES = Family(
    "llmgw_fabric_changes_total",
    "counter",
    "What changed, by area: cabling, managers or port",
    (*_LABELS, "area"),
    "3 × fabrics",
)
MAP_AGE = Family("llmgw_fabric_map_age_seconds", "gauge", "Since the newest map was taken", _LABELS, _BOUND)
SWITCHES = Family("llmgw_fabric_switches", "gauge", "Switches on the newest map", _LABELS, _BOUND)
ADAPTERS = Family(
    "llmgw_fabric_adapters", "gauge", "Adapters on the newest map, without SHARP nodes", _LABELS, _BOUND
)
CABLES = Family("llmgw_fabric_cables", "gauge", "Cables on the newest map, each counted once", _LABELS, _BOUND)
SLOW_CABLES = Family(
    "llmgw_fabric_slow_cables",
    "gauge",
    "Cables that run below the rate that both their ends could do",
    _LABELS,
    _BOUND,
)
DIFFERENCES = Family(
    "llmgw_fabric_differences",
    "gauge",
    "How the newest map differs from the accepted cabling; absent where none was accepted",
    _LABELS,
    _BOUND,
)
PORTS = Family(
    "llmgw_fabric_ports",
    "gauge",
    "Ports of a fabric by state, also of those that are down",
    ("fabric", "state"),
    "5 × fabrics",
)
FAMILIES = (
    *(MASTER, MANAGERS, ANSWER, PROBLEMS, MASTER_CHANGES, CHANGES, MAP_AGE),
    *(SWITCHES, ADAPTERS, CABLES, SLOW_CABLES, DIFFERENCES, PORTS),
)


def fabric_text(source: Source) -> str:
    """Every family about fabrics."""
    hub = source.hub
    now = hub.clock.wall()
    known = [(_at(fabric), fabric) for _, fabric in sorted(hub.fabrics.known.items()) if fabric.names]
    areas = ((*at, area) for at, _ in known for area in _AREAS)
    return (
        MASTER.text(_masters(known))
        + MANAGERS.text(_managers(known))
        + ANSWER.text((at, int(fabric.answer == "ok")) for at, fabric in known)
        + PROBLEMS.text((at, len(hub.fabrics.findings_of(fabric, now))) for at, fabric in known)
        + MASTER_CHANGES.text((at, fabric.master_changes) for at, fabric in known)
        + CHANGES.text((at, hub.fabrics.known[at[1]].changes.get(at[2], 0)) for at in areas)
        + _maps(known, now)
        + PORTS.text(_ports(source))
    )


_Known = list[tuple[tuple[str, str], KnownFabric]]


def _at(fabric: KnownFabric) -> tuple[str, str]:
    return label(fabric), fabric.id


def _masters(known: _Known) -> Iterator[Sample]:
    for at, fabric in known:
        if fabric.managers is not None and fabric.managers.master is not None:
            yield (*at, fabric.managers.master.guid or "unknown"), 1


def _managers(known: _Known) -> Iterator[Sample]:
    for at, fabric in known:
        said = fabric.managers
        yield (*at, "master"), int(said is not None and said.master is not None)
        yield (*at, "standby"), len(said.standbys) if said is not None else 0


def _maps(known: _Known, now: float) -> str:
    drawn = [(at, fabric, fabric.map) for at, fabric in known if fabric.map is not None]
    counted = [(at, _figures(newest.analysis)) for at, _, newest in drawn]
    parts = [MAP_AGE.text((at, max(0.0, now - newest.at)) for at, _, newest in drawn)]
    for family in (SWITCHES, ADAPTERS, CABLES, SLOW_CABLES):
        parts += [family.text([(at, figures[family]) for at, figures in counted])]
    parts.append(
        DIFFERENCES.text((at, len(fabric.differences)) for at, fabric, _ in drawn if fabric.accepted is not None)
    )
    return "".join(parts)


def _figures(analysis: Analysis) -> dict[Family, int]:
    return {
        SWITCHES: len(analysis.topology.of_kind("switch")),
        ADAPTERS: len(analysis.topology.of_kind("adapter")),
        CABLES: len(analysis.topology.links),
        SLOW_CABLES: len(analysis.slow),
    }


def _ports(source: Source) -> Iterator[Sample]:
    """Ports by the fabric that they were last offered on."""
    counts: Counter[tuple[str, str]] = Counter()
    for node in source.hub.fleet.nodes.values():
        for port in node.inventory.ports:
            name = source.hub.ports.name_of(node.node_id, port.adapter, port.port)
            if name is not None:
                counts[name, port.state if port.state in _PORT_STATES else "unknown"] += 1
    for name in sorted({name for name, _ in counts}):
        for state in _PORT_STATES:
            yield (name, state), counts[name, state]
