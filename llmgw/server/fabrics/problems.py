"""What is wrong with a fabric, as findings. Pure: what is known and the time in, sentences out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from llmgw.fabric.managers import NO_STANDBY
from llmgw.fabric.names import short_name
from llmgw.fabric.rates import format_rate
from llmgw.fabric.records import guid_text
from llmgw.fabric.report import what_lacks
from llmgw.fabric.topology import Link, Node, Topology
from llmgw.messages.findings import Finding, Severity
from llmgw.server.fabrics.known import KnownFabric, KnownName
from llmgw.server.fabrics.manager_changes import manager_label
from llmgw.server.fabrics.recognition import FAILOVER_S

MASTER_CHANGE_SHOWN_S = 3600.0
SHOWN_MAX = 20
"""Cables, differences: beyond so many of a kind one finding counts the rest."""
PORTS_SHOWN_MAX = 5


def fabric_findings(fabric: KnownFabric, identity: Sequence[str], now: float) -> list[Finding]:
    """Everything that is wrong with a fabric. `identity`: what is wrong with its names, in sentences."""
    where = label(fabric)
    found = [
        Finding(
            check="fabric-identity",
            severity="error",
            where=where,
            what=problem,
            why="a replica of several nodes must stay on one physical fabric, whatever its name",
            remedy="correct the names of fabrics in agent.yaml on those nodes; until then placement goes by the "
            "physical fabric",
        )
        for problem in identity
    ]
    found += _managers(fabric, where, now)
    found += _ports(fabric.in_init, where)
    found += _map(fabric, where, now)
    return found


def name_findings(name: KnownName) -> list[Finding]:
    """What is wrong with a name for which no physical fabric is known."""
    found = []
    if name.unasked:
        several = "agents of" if len(name.unasked) > 1 else "agent of"
        found.append(
            Finding(
                check="fabric-unasked",
                severity="info",
                where=name.name,
                what=f"nobody can be asked about {name.name}: the {several} {_some(name.unasked)} cannot run its "
                "tools",
                why="its managers are not watched, and it is not mapped",
                remedy="update llmgw on one of its nodes",
            )
        )
    elif name.error is not None:
        found.append(
            Finding(
                check="fabric-unasked",
                severity="warning",
                where=name.name,
                what=f"nothing is known of {name.name}: {name.error}",
                why="its managers are not watched",
                remedy="run saquery SMIR as root on one of its nodes (infiniband-diags)",
            )
        )
    if name.map_error is not None and not name.unasked:
        found.append(_map_failed(name.name, name.map_error, "it has not been mapped yet"))
    return [*found, *_ports(name.in_init, name.name)]


def label(fabric: KnownFabric) -> str:
    """What people call it, or its id."""
    return ", ".join(fabric.names) or fabric.id


def ago(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h`, `2 days`."""
    seconds = max(0.0, seconds)
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def _managers(fabric: KnownFabric, where: str, now: float) -> Iterable[Finding]:
    why = "without a manager a fabric goes on, but no port that comes up is given traffic"
    said = fabric.managers
    if fabric.managers_error is not None:
        yield Finding(
            check="fabric-managers-unasked",
            severity="warning",
            where=where,
            what=f"its managers cannot be asked: {fabric.managers_error}",
            why="what is shown of them may be out of date",
            remedy="run saquery SMIR as root on that node (infiniband-diags)",
        )
    if fabric.silent_since is not None:
        last = said.master if said is not None else None
        seen = f", last seen {ago(now - (fabric.managers_at or now))} ago: {manager_label(last)}" if last else ""
        what = "it has no subnet manager" if fabric.answer == "none" else "its managers are unknown"
        severity: Severity = "error" if now - fabric.silent_since > FAILOVER_S else "warning"
        yield Finding(
            check="fabric-managers-silent",
            severity=severity,
            where=where,
            what=f"{what}{seen}; nothing has answered for {ago(now - fabric.silent_since)}",
            why=why,
            remedy="a failover takes most of a minute; after that look at the manager's host (systemctl status "
            "opensm), or at the switch that runs it",
        )
    elif fabric.answer == "ok" and said is not None:
        for problem in said.problems:
            alone = problem == NO_STANDBY
            yield Finding(
                check="fabric-no-standby" if alone else "fabric-managers",
                severity="warning",
                where=where,
                what=f"{problem}: {manager_label(said.master)} is its only manager"
                if alone and said.master
                else problem,
                why=why,
                remedy="start a second manager on another host: systemctl enable --now opensm"
                if alone
                else "look at the managers' logs (/var/log/opensm.log)",
            )
    if fabric.disagreement is not None and now - fabric.disagreement.since > FAILOVER_S:
        told = "; ".join(f"LID {lid}: {_some(ports)}" for lid, ports in fabric.disagreement.ports.items())
        yield Finding(
            check="fabric-masters-disagree",
            severity="error",
            where=where,
            what=f"its ports disagree on the master for {ago(now - fabric.disagreement.since)} ({told})",
            why="two managers that both believe to be the master configure one fabric against each other",
            remedy="stop one of them; when there is one only, restart the ports that name the other",
        )
    changed = fabric.master_changed_at
    if changed is not None and now - changed < MASTER_CHANGE_SHOWN_S:
        master = f": it is {manager_label(said.master)}" if said is not None and said.master else ""
        yield Finding(
            check="fabric-master-changed",
            severity="warning",
            where=where,
            what=f"the master changed {ago(now - changed)} ago{master}",
            why="a manager that died or was cut off does not come back by itself",
            remedy=f"`llmgw ctl fabric changes {fabric.names[0] if fabric.names else fabric.id}` tells when and "
            "from which; look at the host of the other",
        )


def _ports(in_init: Sequence[str], where: str) -> Iterable[Finding]:
    if in_init:
        several = len(in_init) > 1
        yield Finding(
            check="fabric-ports-unmanaged",
            severity="error",
            where=where,
            what=f"{_some(in_init)} {'are' if several else 'is'} up, but no subnet manager has configured "
            f"{'them' if several else 'it'} (INIT)",
            why="a port without a manager carries nothing",
            remedy="start a subnet manager on this fabric (systemctl start opensm), or look at the one it has",
        )


def _map(fabric: KnownFabric, where: str, now: float) -> Iterable[Finding]:
    name = fabric.names[0] if fabric.names else fabric.id
    if fabric.map_error is not None:
        made = fabric.map
        since = "since the server started" if fabric.cabling is not None else "yet"
        rest = f"the map is {ago(now - made.at)} old" if made is not None else f"it has not been mapped {since}"
        yield _map_failed(where, fabric.map_error, rest)
    if fabric.differences:
        for change in fabric.differences[:SHOWN_MAX]:
            yield _finding(
                "fabric-cabling-differs",
                where,
                f"other than accepted: {change.what}",
                "its cabling was accepted as it should be, and is not so any more",
                f"put it back, or accept it as it is: `llmgw ctl fabric accept {name}`",
            )
        yield from _more(
            "fabric-cabling-differs", where, "differences from the accepted cabling", fabric.differences
        )
    if fabric.map is None:
        return
    analysis = fabric.map.analysis
    if not analysis.topology.whole:
        yield _finding(
            "fabric-map-not-whole",
            where,
            f"the map that {fabric.map.asked} gave is not whole: {'; '.join(what_lacks(analysis.topology))}",
            "what it lacks may still be there, so that nothing is held to be gone",
            f"`llmgw ctl fabric map {name}` shows what could not be read; when it stays so, run ibnetdiscover "
            "there as root and look at what it prints",
        )
    shared = _shared_names(analysis.topology) if analysis.slow else frozenset()
    for cable in analysis.slow[:SHOWN_MAX]:
        yield _finding(
            "fabric-cable-slow",
            where,
            f"the cable {cable_label(cable.link, shared)} runs at {format_rate(cable.rate)}, not "
            f"{format_rate(cable.expected)}: {cable.why}",
            "what crosses it is as slow as it is",
            "reseat or replace the cable, and look at the speed setting of both ports",
        )
    yield from _more("fabric-cable-slow", where, "cables below their rate", analysis.slow)
    if analysis.topology.duplicate_guids:
        guids = [guid_text(guid) or "" for guid in analysis.topology.duplicate_guids]
        yield _finding(
            "fabric-guid-twice",
            where,
            f"two devices each have the GUID {_some(guids)}",
            "a manager routes to one of them only",
            "find them by their cables (`llmgw ctl fabric map`), and give one another GUID, or update its "
            "firmware",
        )
    for pair in analysis.rails.swapped[:SHOWN_MAX]:
        yield _finding(
            "fabric-rails-swapped",
            where,
            f"{pair.node}: {' and '.join(pair.adapters)} are each on the other's leaf",
            "their rails cross the spine, where those of all other nodes do not",
            f"swap the two cables at {pair.node}",
        )
    yield from _more("fabric-rails-swapped", where, "swapped pairs", analysis.rails.swapped)


def cable_label(link: Link, shared: Set[str] = frozenset()) -> str:
    """`from leaf-1[11] to spine-2[3]`, as on the drawing; a name that is among `shared` with its GUID."""
    return f"from {_node(link.a, shared)}[{link.a_port}] to {_node(link.b, shared)}[{link.b_port}]"


def _node(node: Node, shared: Set[str]) -> str:
    name = short_name(node.label)
    return f"{name} ({node.guid_text})" if name in shared else name


def _shared_names(topology: Topology) -> frozenset[str]:
    """What more than one device of a map is called."""
    names = Counter(short_name(node.name) for node in topology.nodes.values() if node.name)
    return frozenset(name for name, times in names.items() if times > 1)


def _map_failed(where: str, error: str, rest: str) -> Finding:
    return _finding(
        "fabric-map-failed",
        where,
        f"the last attempt to map it failed: {error}; {rest}",
        "what changes in its cabling is not noticed",
        "run ibnetdiscover as root on a node of it, and look at what it prints (llmgw inspect fabric reads it)",
    )


def _finding(check: str, where: str, what: str, why: str, remedy: str) -> Finding:
    return Finding(check=check, severity="warning", where=where, what=what, why=why, remedy=remedy)


def _more(check: str, where: str, what: str, items: Sequence[object]) -> Iterable[Finding]:
    if len(items) > SHOWN_MAX:
        rest = f"{len(items) - SHOWN_MAX} more {what}; `llmgw ctl fabric map` lists all of them"
        yield _finding(check, where, rest, "", "")


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:PORTS_SHOWN_MAX])
    return shown if len(names) <= PORTS_SHOWN_MAX else f"{shown} and {len(names) - PORTS_SHOWN_MAX} more"
