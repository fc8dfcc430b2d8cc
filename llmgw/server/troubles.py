"""What needs a person, as the control plane sees it: nodes that are away, what does not run or move.

Pure: it reads the fleet and the catalog, and asks placement's own filters why.
"""

from __future__ import annotations

from collections import defaultdict

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.model import Backoff, Fleet, NodeState, Replica, ReplicaState
from llmgw.fleet.moves import Move, moves
from llmgw.fleet.placement import place
from llmgw.fleet.reconcile import backoff_of
from llmgw.fleet.room import Room, Wanted
from llmgw.messages.findings import Finding

FAILED_OFTEN = 2
"""One failure may be anything; a profile that failed so often in a row needs a person."""
EXPLAINED_MAX = 20
"""Why a profile finds no place is asked of every node: only of so many profiles each time."""


def troubles(fleet: Fleet, catalog: Catalog, now: float) -> list[Finding]:
    """What is wrong with the fleet beside what nodes say themselves. `now` is of the fleet's monotonic clock."""
    moving = moves(fleet, catalog, now)
    profiles = _profiles(fleet, catalog, now)
    # That a replacement fails is said once.
    failing = {finding.where for finding in profiles}
    stuck = [finding for finding in _stuck(fleet, moving) if finding.where not in failing]
    return [*_doubted(fleet), *_nodes(fleet), *_over_fabrics(fleet), *_stalled(fleet), *profiles, *stuck]


def _doubted(fleet: Fleet) -> list[Finding]:
    if not fleet.doubted:
        return []
    nodes = ", ".join(sorted(fleet.doubted))
    return [
        Finding(
            check="mass-silence",
            severity="error",
            where="server",
            what=f"{nodes} fell silent together; none of them is declared lost until a third is back",
            why="when most nodes go at once, this server's own network is the likelier fault",
            remedy="check this network; `llmgw ctl node remove NODE` for those that are really gone",
        )
    ]


def _nodes(fleet: Fleet) -> list[Finding]:
    found = []
    for node in sorted(fleet.nodes.values(), key=lambda node: node.node_id):
        if node.state is NodeState.LOST:
            why = "what ran there is placed elsewhere, as far as there is room"
        elif node.state is NodeState.UNREACHABLE:
            why = "what runs there goes on, and nothing can be started or stopped there"
        elif node.state is NodeState.UNKNOWN and not fleet.settling:
            why = "nothing is placed there"
        else:
            continue
        said = node.reason or "it has not registered since the server started"
        found.append(
            Finding(
                check=f"node-{node.state}",
                severity="error" if node.state is NodeState.LOST else "warning",
                where=node.node_id,
                what=f"{node.node_id} is {node.state}: {said}",
                why=why,
                remedy="look at the machine, its network and its agent's log; "
                f"`llmgw ctl node remove {node.node_id}` when it never comes back",
            )
        )
    return found


def _over_fabrics(fleet: Fleet) -> list[Finding]:
    """Replicas of several nodes whose ranks cannot reach each other over a fabric, or never could."""
    found = []
    for replica in fleet.replicas.values():
        if not replica.live or replica.nodes == 1:
            continue
        outage = replica.outage
        if outage is not None:
            out = "it is out of the rotation" if outage.out_since is not None else "it leaves the rotation soon"
            found.append(
                Finding(
                    check="replica-fabric-down",
                    severity="error",
                    where=replica.replica_id,
                    what=f"{replica.replica_id} of {replica.model}: {replica.fabric} is down under it: "
                    f"{outage.reason}",
                    why=f"its ranks do not reach each other; {out}, and is failed and replaced unless the fabric "
                    "is soon up again",
                    remedy=f"bring the port up again; `llmgw ctl nodes {outage.nodes[0]}` shows its ports",
                )
            )
        facts, name = fleet.fabric_facts, replica.fabric or ""
        spanned = sorted({place for node in replica.node_ids if (place := facts.place(node, name).physical)})
        if len(spanned) > 1:
            found.append(
                Finding(
                    check="replica-spans-fabrics",
                    severity="error",
                    where=replica.replica_id,
                    what=f"{replica.replica_id} of {replica.model} sits on {len(spanned)} physical fabrics that "
                    f"are all called {name}: {', '.join(spanned)}",
                    why="its ranks reach each other over the slow network at best, and may hang",
                    remedy="give each physical fabric a name of its own in the nodes' agent.yaml; "
                    f"`llmgw ctl restart {replica.replica_id}` moves it to one of them",
                )
            )
    return found


def _stalled(fleet: Fleet) -> list[Finding]:
    return [
        Finding(
            check="replica-stalled",
            severity="warning",
            where=replica.replica_id,
            what=f"{replica.replica_id} of {replica.model} is out of the rotation: {replica.suspended}",
            why="it comes back with its first sign of progress, and is replaced when that does not come",
            remedy=f"look at `llmgw ctl logs {replica.replica_id}`; `llmgw ctl restart {replica.replica_id}` "
            "replaces it now",
        )
        for replica in fleet.replicas.values()
        if replica.state is ReplicaState.READY and replica.suspended is not None
    ]


def _profiles(fleet: Fleet, catalog: Catalog, now: float) -> list[Finding]:
    of: dict[tuple[str, str], list[Replica]] = defaultdict(list)
    for replica in fleet.replicas.values():
        of[replica.model, replica.profile].append(replica)
    found: list[Finding] = []
    room: Room | None = None
    explained = 0
    for model in catalog.models:
        for profile in model.profiles:
            replicas = of[model.name, profile.name]
            ready = sum(1 for replica in replicas if replica.state is ReplicaState.READY)
            as_wanted = sum(
                1
                for replica in replicas
                if replica.state is ReplicaState.READY
                and replica.profile_hash == model.profile_hashes[profile.name]
            )
            backoff = backoff_of(fleet, model, profile)
            if as_wanted >= profile.replicas:
                continue
            if backoff is not None and backoff.failures >= FAILED_OFTEN:
                found.append(_failing(model, profile, ready, backoff, now))
            elif not fleet.settling and sum(1 for replica in replicas if replica.live) < profile.replicas:
                if explained == EXPLAINED_MAX:
                    continue
                explained += 1
                room = room or Room.of(fleet)
                verdict = place(fleet, Wanted(model.name, profile), room)
                if verdict.seats is None:
                    found.append(_unplaced(model, profile, ready, verdict.reason))
    return found


def _failing(model: CatalogModel, profile: Profile, ready: int, backoff: Backoff, now: float) -> Finding:
    again = max(0.0, backoff.not_before - now)
    return Finding(
        check="profile-failing",
        severity="warning" if ready else "error",
        where=f"{model.name}/{profile.name}",
        what=f"{ready} of {profile.replicas} wanted are ready; it failed {backoff.failures} times in a row, "
        f"the last: {backoff.reason}",
        why=f"it is tried again in {again:.0f} s, and ever more seldom",
        remedy=f"`llmgw ctl logs {backoff.replica_id}` has its last output; a profile that is mended "
        "(`llmgw ctl apply`) is tried at once",
    )


def _unplaced(model: CatalogModel, profile: Profile, ready: int, reason: str) -> Finding:
    return Finding(
        check="profile-unplaced",
        severity="warning" if ready else "error",
        where=f"{model.name}/{profile.name}",
        what=f"{ready} of {profile.replicas} wanted are ready; the next cannot be placed: {reason}",
        why="it is placed as soon as there is room",
        remedy=f"`llmgw ctl explain {model.name}` says which node refuses it and why; add room, or scale down",
    )


def _stuck(fleet: Fleet, moving: dict[str, Move]) -> list[Finding]:
    by_profile: dict[tuple[str, str], list[Move]] = defaultdict(list)
    for move in moving.values():
        replica = fleet.replicas[move.replica_id]
        if move.stuck:
            by_profile[replica.model, replica.profile].append(move)
    found = []
    for (model, profile), stuck in by_profile.items():
        names = ", ".join(move.replica_id for move in stuck)
        on = sorted({node for move in stuck for node in fleet.replicas[move.replica_id].node_ids})
        drains = [f"`llmgw ctl drain {node} --force`" for node in on if fleet.nodes[node].draining]
        by_force = " or ".join([*drains, "stop_first in the profile"])
        found.append(
            Finding(
                check="move-stuck",
                severity="warning",
                where=f"{model}/{profile}",
                what=f"{names} cannot be replaced: {stuck[0].sentence}",
                why="a planned move stops nothing before its replacement is ready, so this waits",
                remedy=f"add room or scale something down; {by_force} moves it with a gap",
            )
        )
    return found
