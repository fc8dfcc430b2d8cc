"""The tables of `llmgw ctl top`: the fleet's facts in, rows out, the most important first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmgw.cli.ctl import cells
from llmgw.cli.output import STATE_STYLES, Column, format_age, plain

if TYPE_CHECKING:
    from llmgw.cli.ctl.top_facts import Facts
    from llmgw.messages.admin import ModelView, NodeView, ReplicaView
    from llmgw.messages.findings import Finding
    from llmgw.messages.recent_views import ModelRates

SIGNS = {"error": ("✕", "bold red"), "warning": ("▲", "yellow"), "info": ("i", "")}
IN_USE, FREE, UNUSABLE = "■", "□", "✕"
DRAWN_GPUS_MAX = 16
"""GPUs of a node that have a sign each; of more only the counts are told."""
_AWAY = ("lost", "unreachable", "unknown")


@dataclass(frozen=True)
class Cell:
    """A cell's text, already harmless, and Rich's style for it."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Table:
    """A part of the frame. `more` is the command that lists what there is no room for."""

    title: str
    columns: list[Column]
    rows: list[list[Cell]] = field(default_factory=list)
    more: str = ""
    empty: str = ""


def problems(facts: Facts) -> list[Finding]:
    """Everything that needs a person, errors first, else as the server orders it."""
    order = list(SIGNS)
    return sorted(facts.server.problems, key=lambda finding: order.index(finding.severity))


def model_table(facts: Facts) -> Table:
    """Models that lack replicas or answer with errors first, then the busiest."""
    columns = [
        Column("model"),
        Column("ready", right=True),
        Column("req/s", right=True),
        Column("err/s", right=True, spare=2),
        Column("first p50", right=True, spare=5),
        Column("p95", right=True, spare=1),
        Column("tok/s", right=True, spare=3),
        Column("run", right=True, spare=4),
        Column("wait", right=True),
        Column("cache", right=True, spare=6),
        Column("prompt/s", right=True, spare=8),
        Column("all p95", right=True, spare=9),
        Column("why", spare=7),
    ]
    rates = {each.model: each for each in facts.rates or []}
    ordered = sorted(facts.models, key=lambda model: _model_rank(model, rates.get(model.name)))
    rows = [_model_row(model, rates.get(model.name), _cache(model, facts.replicas)) for model in ordered]
    return Table("models", columns, rows, "llmgw ctl models", "the catalog has no model")


def node_table(facts: Facts) -> Table:
    """Nodes that are away first, then those with something wrong, then the busiest."""
    columns = [
        Column("node"),
        Column("state"),
        Column("gpus in use"),
        Column("load", right=True, spare=3),
        Column("hottest", right=True, spare=4),
        Column("memory", right=True, spare=6),
        Column("fabrics", spare=2),
        Column("replicas", right=True, spare=5),
        Column("heard", right=True, spare=7),
        Column("agent", spare=8),
        Column("address", spare=9),
        Column("notes", spare=1),
    ]
    rows = [_node_row(node) for node in sorted(facts.nodes, key=_node_rank)]
    return Table("nodes", columns, rows, "llmgw ctl nodes", "no node has registered yet")


def replica_table(facts: Facts) -> Table:
    """Replicas that are not ready, or that get no requests, first; then the busiest."""
    columns = [
        Column("replica"),
        Column("state"),
        Column("for", right=True, spare=2),
        Column("nodes", spare=4),
        Column("run", right=True, spare=3),
        Column("model", spare=5),
        Column("fabric", spare=6),
        Column("endpoint", spare=7),
        Column("why", spare=1),
    ]
    ordered = sorted(
        facts.replicas,
        key=lambda each: (each.state == "ready", each.routed, -each.in_flight, each.replica_id),
    )
    rows = [_replica_row(replica, facts.at) for replica in ordered]
    return Table("replicas", columns, rows, "llmgw ctl replicas", "there are no replicas")


def router_table(facts: Facts) -> Table:
    """Router processes, in the server's words."""
    rows = [[Cell(plain(router))] for router in facts.server.routers]
    return Table("routers", [Column("router")], rows, "llmgw ctl status", "no router is connected")


def summary(facts: Facts) -> list[str]:
    """The fleet in a few counts, the most important first."""
    states: dict[str, int] = {}
    for node in facts.nodes:
        states[node.state] = states.get(node.state, 0) + 1
    away = [f"{states[state]} {state}" for state in _AWAY if state in states]
    gpus = [gpu for node in facts.nodes for gpu in node.gpus]
    unusable = sum(not gpu.usable for gpu in gpus)
    in_use = sum(len(node.gpus_in_use) for node in facts.nodes)
    wanted = sum(profile.wanted for model in facts.models for profile in model.profiles)
    ready = sum(profile.ready for model in facts.models for profile in model.profiles)
    parts = [
        f"nodes {states.get('ready', 0)}/{len(facts.nodes)} ready{''.join(f', {each}' for each in away)}",
        f"GPUs {in_use}/{len(gpus)} in use{f', {unusable} unusable' if unusable else ''}",
        f"replicas {ready}/{wanted} ready",
    ]
    if facts.rates is not None:
        parts.append(f"{per_second(sum(each.requests_per_s for each in facts.rates))} req/s")
        parts.append(f"{per_second(sum(each.tokens_per_s for each in facts.rates))} tok/s")
    return parts


def per_second(value: float | None) -> str:
    """`0`, `0.3`, `12`, `1.2k`; a dash where it is not known."""
    if value is None:
        return cells.NONE
    if value >= 9950:
        return f"{value / 1000:.0f}k"
    if value >= 1000:
        return f"{value / 1000:.1f}k"
    if value >= 9.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 0.05 else "0" if value == 0 else "<0.1"


def latency(seconds: float | None) -> str:
    """`34 ms`, `1.2 s`, `95 s`, `3m10s`; a dash where it is not known."""
    if seconds is None:
        return cells.NONE
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return format_age(seconds)


def _model_rank(model: ModelView, rates: ModelRates | None) -> tuple[bool, bool, float, str]:
    lacks = any(profile.ready < profile.wanted for profile in model.profiles)
    errors = rates.errors_per_s if rates else 0.0
    return (not lacks, not errors, -(rates.requests_per_s if rates else 0.0), model.name)


def _model_row(model: ModelView, rates: ModelRates | None, cache: float | None) -> list[Cell]:
    wanted = sum(profile.wanted for profile in model.profiles)
    ready = sum(profile.ready for profile in model.profiles)
    if model.profiles:
        count = Cell(f"{ready}/{wanted}", "" if ready >= wanted else "yellow" if ready else "red")
    else:
        up = model.endpoints_ready
        count = Cell(f"{up}/{len(model.static_endpoints)}", "" if up else "red")
    reasons = [profile.reason for profile in model.profiles if profile.reason]
    errors = rates.errors_per_s if rates else None
    return [
        Cell(plain(model.name)),
        count,
        Cell(per_second(rates.requests_per_s if rates else None)),
        Cell(per_second(errors), "red" if errors else ""),
        Cell(latency(rates.first_byte_p50_s if rates else None)),
        Cell(latency(rates.first_byte_p95_s if rates else None)),
        Cell(per_second(rates.tokens_per_s if rates else None)),
        Cell(str(rates.in_flight) if rates else cells.NONE),
        Cell(str(model.queued), "yellow" if model.queued else ""),
        Cell(_percent(None if cache is None else 100 * cache)),
        Cell(per_second(rates.prompt_tokens_per_s if rates else None)),
        Cell(latency(rates.total_p95_s if rates else None)),
        Cell(plain(reasons[0]) if reasons else ""),
    ]


def _cache(model: ModelView, replicas: Sequence[ReplicaView]) -> float | None:
    """The fullest KV cache of its engines, as a share."""
    used = [
        replica.figures.cache_used
        for replica in replicas
        if replica.model == model.name and replica.figures and replica.figures.cache_used is not None
    ]
    return max(used, default=None)


def _node_rank(node: NodeView) -> tuple[int, int, int, str]:
    away = _AWAY.index(node.state) if node.state in _AWAY else len(_AWAY)
    severities = {finding.severity for finding in node.findings}
    wrong = 0 if "error" in severities else 1 if "warning" in severities else 2
    marked = 2 if node.draining or node.cordoned else 3
    return (away, min(wrong, marked), -len(node.gpus_in_use), node.node_id)


def _node_row(node: NodeView) -> list[Cell]:
    marks = [mark for mark, on in (("cordoned", node.cordoned), ("draining", node.draining)) if on]
    loads = [gpu.utilization_percent for gpu in node.gpus if gpu.utilization_percent is not None]
    heat = [gpu.temperature_c for gpu in node.gpus if gpu.temperature_c is not None]
    broken = [fabric for fabric in node.fabrics if not fabric.usable]
    fabrics = [plain(fabric.name) + ("" if fabric.usable else "!") for fabric in node.fabrics]
    return [
        Cell(plain(node.node_id)),
        Cell(plain(marks[0] if marks and node.state == "ready" else node.state), _state_style(node.state, marks)),
        Cell(_gpus(node)),
        Cell(_percent(sum(loads) / len(loads) if loads else None)),
        Cell(f"{max(heat)} °C" if heat else cells.NONE),
        Cell(_memory(node)),
        Cell(", ".join(fabrics) or cells.NONE, "red" if broken else ""),
        Cell(str(len(node.replicas))),
        Cell(cells.NONE if node.last_heard_s is None else format_age(node.last_heard_s)),
        Cell(cells.text(node.version)),
        Cell(cells.text(node.address)),
        Cell(_notes(node, marks)),
    ]


def _gpus(node: NodeView) -> str:
    """`■■□✕ 2/4`: each GPU by index, and how many of how many are in use."""
    if not node.gpus:
        return cells.NONE
    count = f"{len(node.gpus_in_use)}/{len(node.gpus)}"
    if len(node.gpus) > DRAWN_GPUS_MAX:
        unusable = sum(not gpu.usable for gpu in node.gpus)
        return f"{count}, {unusable} unusable" if unusable else count
    signs = [
        IN_USE if gpu.index in node.gpus_in_use else FREE if gpu.usable else UNUSABLE
        for gpu in sorted(node.gpus, key=lambda gpu: gpu.index)
    ]
    return f"{''.join(signs)} {count}"


def _memory(node: NodeView) -> str:
    known = [
        (gpu.memory_used_mib, gpu.memory_total_mib)
        for gpu in node.gpus
        if gpu.memory_used_mib is not None and gpu.memory_total_mib
    ]
    total = sum(total for _, total in known)
    return _percent(100 * sum(used for used, _ in known) / total if total else None)


def _notes(node: NodeView, marks: Sequence[str]) -> str:
    notes = [node.reason] if node.reason else []
    if marks and node.state != "ready":
        notes.append(", ".join(marks))
    # Why a drain waits is more than that there is one.
    notes += [*node.drain_left[:1], *node.drain_waits[:1]]
    order = list(SIGNS)
    serious = sorted(node.findings, key=lambda finding: order.index(finding.severity))
    notes += [finding.what for finding in serious[:1] if finding.severity != "info"]
    return plain("; ".join(notes))


def _replica_row(replica: ReplicaView, now: float) -> list[Cell]:
    unrouted = replica.state == "ready" and not replica.routed
    progress = [cells.progress(shard.progress) for shard in replica.shards if shard.progress]
    why = [*(["not routed to"] if unrouted else []), *progress, *([replica.reason] if replica.reason else [])]
    return [
        Cell(plain(replica.replica_id)),
        Cell(plain(replica.state), "yellow" if unrouted else _state_style(replica.state)),
        Cell(format_age(max(0.0, now - replica.since))),
        Cell(cells.listed(replica.nodes)),
        Cell(str(replica.in_flight)),
        Cell(plain(replica.model)),
        Cell(cells.text(replica.fabric)),
        Cell(cells.text(replica.endpoint)),
        Cell(plain("; ".join(why))),
    ]


def _state_style(state: str, marks: Sequence[str] = ()) -> str:
    return "yellow" if marks and state == "ready" else STATE_STYLES.get(state, "")


def _percent(value: float | None) -> str:
    return cells.NONE if value is None else f"{value:.0f} %"
