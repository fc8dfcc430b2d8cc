"""The fabrics' metrics: what is known of each, bounded by what is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from llmgw.fabric.report import Analysis
from llmgw.messages.agent import Port
from llmgw.server.fabrics.known import KnownFabric
from llmgw.server.fabrics.problems import label
from llmgw.server.hub import Hub

LABELS = ["fabric", "id"]
_PORT_STATES = ("ACTIVE", "INIT", "ARMED", "DOWN", "unknown")
_AREAS = ("cabling", "managers", "port")
_LABEL_CHARS_MAX = 128


def fabric_metrics(hub: Hub) -> Iterator[Metric]:
    """Every family about fabrics."""
    now = hub.clock.wall()
    known = [fabric for _, fabric in sorted(hub.fabrics.known.items()) if fabric.names]
    managers = GaugeMetricFamily(
        "llmgw_fabric_managers",
        "Subnet managers as they were last seen, by state: master or standby",
        labels=[*LABELS, "state"],
    )
    answered = GaugeMetricFamily(
        "llmgw_fabric_managers_answer", "1 while the fabric's managers answer, else 0", labels=LABELS
    )
    problems = GaugeMetricFamily("llmgw_fabric_problems", "What is wrong with the fabric", labels=LABELS)
    master_changes = CounterMetricFamily(
        "llmgw_fabric_master_changes", "How often another manager became the master", labels=LABELS
    )
    changes = CounterMetricFamily(
        "llmgw_fabric_changes",
        "What changed, by area: cabling, managers or port",
        labels=[*LABELS, "area"],
    )
    for fabric in known:
        at = _labels(fabric)
        said = fabric.managers
        managers.add_metric([*at, "master"], float(said is not None and said.master is not None))
        managers.add_metric([*at, "standby"], float(len(said.standbys)) if said is not None else 0.0)
        answered.add_metric(at, float(fabric.answer == "ok"))
        problems.add_metric(at, len(hub.fabrics.findings_of(fabric, now)))
        master_changes.add_metric(at, fabric.master_changes)
        for area in _AREAS:
            changes.add_metric([*at, area], fabric.changes.get(area, 0))
    yield from (managers, answered, problems, master_changes, changes)
    yield from _maps(known, now)
    yield _ports(hub)


def _maps(known: list[KnownFabric], now: float) -> Iterator[Metric]:
    age = GaugeMetricFamily("llmgw_fabric_map_age_seconds", "Since the newest map was taken", labels=LABELS)
    figures = {
        "switches": "Switches on the newest map",
        "adapters": "Adapters on the newest map, without SHARP nodes",
        "cables": "Cables on the newest map, each counted once",
        "slow_cables": "Cables that run below the rate that both their ends could do",
        "differences": "How the newest map differs from the accepted cabling",
    }
    families = {
        name: GaugeMetricFamily(f"llmgw_fabric_{name}", text, labels=LABELS) for name, text in figures.items()
    }
    for fabric in known:
        if fabric.map is None:
            continue
        at = _labels(fabric)
        age.add_metric(at, max(0.0, now - fabric.map.at))
        for name, value in _figures(fabric.map.analysis).items():
            families[name].add_metric(at, value)
        if fabric.accepted is not None:
            families["differences"].add_metric(at, len(fabric.differences))
    yield age
    yield from families.values()


def _figures(analysis: Analysis) -> dict[str, int]:
    return {
        "switches": len(analysis.topology.of_kind("switch")),
        "adapters": len(analysis.topology.of_kind("adapter")),
        "cables": len(analysis.topology.links),
        "slow_cables": len(analysis.slow),
    }


def _ports(hub: Hub) -> Metric:
    """Ports by the fabric that they were last offered on."""
    family = GaugeMetricFamily("llmgw_fabric_ports", "Ports of a fabric by state", labels=["fabric", "state"])
    counts: Counter[tuple[str, str]] = Counter()
    names = set()
    for node in hub.fleet.nodes.values():
        for port in node.inventory.ports:
            name = hub.ports.name_of(node.node_id, port.adapter, port.port)
            if name is not None:
                names.add(name)
                counts[name, _state(port)] += 1
    for name in sorted(names):
        for state in _PORT_STATES:
            family.add_metric([name[:_LABEL_CHARS_MAX], state], counts[name, state])
    return family


def _state(port: Port) -> str:
    return port.state if port.state in _PORT_STATES else "unknown"


def _labels(fabric: KnownFabric) -> list[str]:
    return [label(fabric)[:_LABEL_CHARS_MAX], fabric.id]
