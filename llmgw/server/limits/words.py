"""Limits that are crossed, and engines that do not tell, as findings and for history. Reads only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from llmgw.config.addresses import join_host_port
from llmgw.config.base import format_duration
from llmgw.fleet.events import Event
from llmgw.fleet.model import Fleet, NodeState, Replica, Shard
from llmgw.messages.findings import Finding
from llmgw.server.limits.readings import ready_replicas
from llmgw.server.limits.watch import CALM_SHARE, HELD_S, Change, Crossing, Key, Kind

NAMED_MAX = 5
_WHAT: dict[Kind, str] = {
    "waiting": "requests that wait in an engine",
    "kv_cache": "use of an engine's KV cache",
    "ttft_p95": "time to the first byte",
}


def limit_findings(fleet: Fleet, crossings: Mapping[Key, Crossing]) -> list[Finding]:
    """One for each limit of a model that is crossed. A replica whose engine is silent has one of its own."""
    ready = ready_replicas(fleet)
    silent = {replica.replica_id for replica, _ in _silent(fleet)}
    by_limit: dict[tuple[str, Kind], dict[str, Crossing]] = {}
    for key, crossing in crossings.items():
        if key.replica not in silent:
            by_limit.setdefault((key.model, key.kind), {})[key.replica] = crossing
    return [
        _model_finding(model, next(iter(crossed.values())), bool(ready.get(model)))
        if kind == "ttft_p95"
        else _replicas_finding(fleet, model, kind, crossed, ready.get(model, []))
        for (model, kind), crossed in by_limit.items()
    ]


def silent_findings(fleet: Fleet) -> list[Finding]:
    """Engines that have not told of their load several times in a row."""
    return [_silent_finding(fleet, replica, leader) for replica, leader in _silent(fleet)]


def limit_event(change: Change, crossings: Mapping[Key, Crossing]) -> Event:
    """For history."""
    what = f"limits.{change.kind}, {_WHAT[change.kind]}"
    if change.crossed:
        of_it = {k.replica: c for k, c in crossings.items() if (k.model, k.kind) == (change.model, change.kind)}
        limit = next(iter(of_it.values())).limit
        at = f"{_listed(change.kind, of_it)} above {_shown(change.kind, limit)}"
        return Event("model", change.model, "limit crossed", f"{what}: {at}", change.model)
    return Event("model", change.model, "limit kept again", what, change.model)


def _silent_finding(fleet: Fleet, replica: Replica, leader: Shard) -> Finding:
    name, address = replica.replica_id, fleet.nodes[leader.node_id].address
    asked = "it"
    if address and leader.http_port:
        asked = f"`curl http://{join_host_port(address, leader.http_port)}/metrics`"
    return Finding(
        check="engine-metrics-silent",
        severity="warning",
        where=name,
        what=f"the engine of {name} ({replica.model}, on {leader.node_id}) does not tell of its load: its "
        f"metrics {leader.figures_problem}, several times in a row",
        why="the routers send requests there without knowing how busy it is, and its model's limits are not "
        "watched there; whether it works is seen by its answers",
        remedy=f"`llmgw ctl logs {name}`; ask {asked} on {leader.node_id}; `llmgw ctl restart {name}` replaces "
        "it",
    )


def _model_finding(model: str, crossing: Crossing, ours: bool) -> Finding:
    look = f"`llmgw ctl scale {model} N` when its engines are busy; " if ours else ""
    return Finding(
        check="limit-ttft",
        severity="warning",
        where=model,
        what=f"{_first_bytes(model, crossing)}; its limits.ttft_p95 is {_shown('ttft_p95', crossing.limit)}"
        f"{_ending('ttft_p95', [crossing])}",
        why="clients wait longer than was meant",
        remedy=f"{look}`llmgw ctl replicas --model {model}` shows who has a queue; a limit that is too low is "
        "changed in the catalog, which restarts nothing",
    )


def _replicas_finding(
    fleet: Fleet, model: str, kind: Kind, crossed: Mapping[str, Crossing], ready: list[Replica]
) -> Finding:
    limit = _shown(kind, next(iter(crossed.values())).limit)
    of = f"{len(crossed)} of its {len(ready)} ready replicas" if len(ready) > 1 else "its only ready replica"
    named = _listed(kind, crossed)
    others = len(ready) - len(crossed)
    nodes = sorted({_node(replica) for replica in ready if replica.replica_id in crossed})
    if others:
        remedy = (
            f"the other {'one stays' if others == 1 else f'{others} stay'} below it: look at "
            f"`llmgw ctl nodes {nodes[0]}` and `llmgw ctl logs {next(iter(crossed))}`; if clients ask for more, "
            f"`llmgw ctl scale {model} N`"
        )
    else:
        remedy = f"`llmgw ctl scale {model} N` adds replicas"
    if kind == "kv_cache":
        remedy += "; a lower concurrency in the profile, or a shorter context, keeps room in each"
        what = f"{model} uses more than its limits.kv_cache of {limit} of the KV cache in {of}: {named}"
        why = "an engine whose cache is full sets requests aside, and begins them anew later"
    else:
        what = f"more requests of {model} wait in the engine than its limits.waiting of {limit}, in {of}: {named}"
        why = "what waits there has its first byte late, and no other replica can take it any more"
    return Finding(
        check="limit-kv-cache" if kind == "kv_cache" else "limit-waiting",
        severity="warning",
        where=model,
        what=f"{what}{_ending(kind, list(crossed.values()))}",
        why=why,
        remedy=remedy,
    )


def _first_bytes(model: str, crossing: Crossing) -> str:
    if not crossing.value:
        return f"nobody waits for {model} any more"
    return (
        f"of {model}, 95 in 100 requests have their first byte within {_shown('ttft_p95', crossing.value)}, "
        "over the last minute"
    )


def _ending(kind: Kind, crossed: Sequence[Crossing]) -> str:
    """What is said while no value is above the limit any more, so that nobody takes those shown for a mistake."""
    if any(crossing.value > crossing.limit for crossing in crossed):
        return ""
    calm = _shown(kind, CALM_SHARE * crossed[0].limit)
    if kind == "waiting":
        calm = f"{math.floor(CALM_SHARE * crossed[0].limit)}"
    return f". It is not above that now, and this ends after {HELD_S:.0f} s of at most {calm}"


def _listed(kind: Kind, crossed: Mapping[str, Crossing]) -> str:
    """`r1 (72), r2 (55)`, the highest first; of a model's own limit the value alone."""
    worst = sorted(crossed.items(), key=lambda each: (-each[1].value, each[0]))
    shown = [f"{name} ({_shown(kind, each.value)})" if name else _shown(kind, each.value) for name, each in worst]
    more = len(shown) - NAMED_MAX
    return ", ".join(shown[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _shown(kind: Kind, value: float) -> str:
    if kind == "kv_cache":
        return f"{100 * value:.4g} %"
    return format_duration(float(f"{value:.3g}")) if kind == "ttft_p95" else f"{value:.0f}"


def _silent(fleet: Fleet) -> Iterator[tuple[Replica, Shard]]:
    """Of nodes that are heard: of another one nothing is known at all, which is said of the node."""
    for replicas in ready_replicas(fleet).values():
        for replica in replicas:
            leader = replica.leader
            if leader is None or leader.phase != "ready" or leader.figures_problem is None:
                continue
            node = fleet.nodes.get(leader.node_id)
            if node is not None and node.state is NodeState.READY:
                yield replica, leader


def _node(replica: Replica) -> str:
    return replica.leader.node_id if replica.leader is not None else ""
