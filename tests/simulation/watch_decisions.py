"""Invariants 1, 2, 3, 6 and 7: what the server decides, compared with how it stood before."""

from __future__ import annotations

from collections import Counter

from llmgw.fleet.carry_out import Effects
from llmgw.fleet.model import LOST, NodeState, Replica, ReplicaState
from llmgw.server.hub import Hub
from tests.simulation.watch import Turn, Watch


class DecisionWatch(Watch):
    """Looks on before a turn, when commands are about to be sent, and after it."""

    def before_turn(self, hub: Hub) -> None:
        """Remember how it stood."""
        turn = self._turn = Turn()
        for replica in hub.fleet.replicas.values():
            if replica.state is ReplicaState.READY:
                turn.ready[replica.model, replica.profile] += 1
                turn.ready_ids[replica.replica_id] = (replica.model, replica.profile)

    def decided(self, hub: Hub, effects: Effects) -> None:
        """Starts and stops are about to be sent."""
        fleet = hub.fleet
        for node_id, spec in effects.starts:
            self._turn.acted = True
            self._world.trace.say("server", f"starts {spec.shard_id} on {node_id} {','.join(spec.gpus)}")
            node = fleet.nodes.get(node_id)
            self._sent_in[spec.shard_id] = node.session if node is not None else None
            self._sent_at[spec.shard_id] = self._world.now
            self._break_now(node_id)
            self.expect(
                node is not None and node.state is not NodeState.LOST,
                "2 GPUs of the lost",
                f"{spec.shard_id} is started on {node_id}, which is lost or unknown",
            )
            if node is None or spec.rank > 0:
                continue
            replica = fleet.replicas[spec.replica_id]
            self.expect(not fleet.settling, "3 settling", f"{spec.replica_id} was placed while settling")
            for seat in replica.seats.values():
                there = fleet.nodes.get(seat.node_id)
                self.expect(
                    there is not None
                    and there.state is NodeState.READY
                    and there.session is not None
                    and not there.draining
                    and not there.cordoned,
                    "2 GPUs of the unreachable",
                    f"{spec.replica_id} was placed on {seat.node_id}, which is "
                    f"{there.state if there else 'unknown'}, draining or cordoned",
                )
                if there is None:
                    continue
                usable = {gpu.uuid for gpu in there.gpus if gpu.usable}
                self.expect(
                    set(seat.gpus) <= usable and len(set(seat.gpus)) == len(seat.gpus),
                    "2 usable GPUs",
                    f"{spec.replica_id} was placed on {seat.gpus} of {seat.node_id}, which has {sorted(usable)}",
                )
                if replica.nodes > 1:
                    self.expect(
                        there.fabric(replica.fabric or "") is not None,
                        "1",
                        f"{spec.replica_id} was placed on {seat.node_id}, where {replica.fabric} is not usable",
                    )
            if replica.nodes > 1:
                self.expect(
                    len(set(replica.node_ids)) == replica.nodes, "1", f"{spec.replica_id} sits twice on one node"
                )
                self._on_one_network(hub, replica)
        for node_id, shard_id, reason in effects.stops:
            self._turn.acted = True
            self._world.trace.say("server", f"stops {shard_id} on {node_id} ({reason})")
            self._break_now(node_id)
            self._stopping(hub, node_id, shard_id, reason)

    def _on_one_network(self, hub: Hub, replica: Replica) -> None:
        """Invariant 1: as far as the server knows the physical fabrics, and where it does, in truth."""
        told = {
            node_id: place.physical
            for (node_id, name), place in hub.fleet.fabric_facts.places.items()
            if name == replica.fabric and place.physical is not None
        }
        known = {told.get(node_id) for node_id in replica.node_ids}
        self.expect(
            len(known) == 1 if len(set(told.values())) > 1 else True,
            "1 physical fabrics",
            f"{replica.replica_id} was placed on {known} though {replica.fabric} is known to be several",
        )
        if None not in known:
            truth = {self._world.machines[node_id].plan.physical for node_id in replica.node_ids}
            self.expect(len(truth) == 1, "1 physical fabrics", f"{replica.replica_id} was placed across {truth}")

    def _break_now(self, node_id: str) -> None:
        if self._world.faults is not None:
            self._world.faults.worst_moment(node_id)

    def _stopping(self, hub: Hub, node_id: str, shard_id: str, reason: str) -> None:
        found = hub.fleet.shard(shard_id)
        if found is None or found[1].node_id != node_id or found[0].state is not ReplicaState.STOPPING:
            return  # a failed replica's rest, or nobody's
        replica = found[0]
        self.expect(
            not hub.fleet.settling, "3 settling", f"{shard_id} is stopped ({reason}) while the server settles"
        )
        router = self._world.router
        since = self._draining_since.get(replica.replica_id)
        if since is None:
            self.expect(
                replica.replica_id not in self._turn.ready_ids,
                "6 planned stops",
                f"{replica.replica_id} was ready and is stopped ({reason}) without a drain",
            )
        elif router.alive and self._world.now - since < hub.settings.drain_grace_s - 1e-6:
            routed = [
                model.name
                for model in (router.table.models if router.table else [])
                for e in model.endpoints
                if e.id == replica.replica_id
            ]
            running = router.in_flight.get(replica.replica_id, 0)
            self.expect(
                not routed and not running,
                "6 planned stops",
                f"{replica.replica_id} is stopped {self._world.now - since:.1f} s after its drain began, "
                f"while the router {'routes to it' if routed else f'has {running} requests on it'}",
            )

    def _planned_moves(self, hub: Hub) -> None:
        fleet, turn = hub.fleet, self._turn
        ready: Counter[tuple[str, str]] = Counter()
        planned: dict[tuple[str, str], list[Replica]] = {}
        # One that is gone altogether had failed: what is stopped on purpose must first say that it has ended.
        failed = Counter(key for name, key in turn.ready_ids.items() if name not in fleet.replicas)
        moving: dict[str, list[str]] = {}
        by_id = fleet.replicas
        for replica in by_id.values():
            key = (replica.model, replica.profile)
            if replica.state is ReplicaState.READY:
                ready[key] += 1
            elif replica.replica_id in turn.ready_ids:
                if replica.state is ReplicaState.FAILED:
                    failed[key] += 1
                else:
                    planned.setdefault(key, []).append(replica)
            original = by_id.get(replica.replaces or "")
            if replica.live and original is not None and original.live:
                if _must_leave(hub, original):  # else both were kept, and nothing moves
                    moving.setdefault(replica.model, []).append(original.replica_id)
            elif replica.state is ReplicaState.DRAINING and (
                "replaced by" in (replica.reason or "") or "(stop_first)" in (replica.reason or "")
            ):
                moving.setdefault(replica.model, []).append(replica.replica_id)
        for model, originals in moving.items():
            self.expect(
                len(set(originals)) == len(originals),
                "3 one replacement",
                f"{model}: one of {originals} has two replacements",
            )
            self.expect(
                len(originals) <= 1, "7 one at a time", f"{originals} of {model} are moved at the same time"
            )
        if not fleet.settling:
            self._not_too_many(hub)
        for key, replicas in planned.items():
            found = hub.catalog.find(*key)
            wanted = found[1].replicas if found is not None else 0
            excused = 0
            for replica in replicas:
                reason = replica.reason or ""
                if "(stop_first)" in reason:
                    self.expect(found is not None and found[1].stop_first, "7", f"{replica.replica_id}: {reason}")
                    excused += 1
                elif "(forced)" in reason:
                    excused += 1
            floor = min(wanted, turn.ready[key] - failed[key]) - excused
            self.expect(
                ready[key] >= floor,
                "7",
                f"{[f'{r.replica_id} ({r.reason})' for r in replicas]} left {ready[key]} of {key[0]} ready, "
                f"where {turn.ready[key]} were and {wanted} are wanted",
            )

    def _not_too_many(self, hub: Hub) -> None:
        live: Counter[tuple[str, str]] = Counter()
        replaced = {replica.replaces for replica in hub.fleet.replicas.values() if replica.live}
        for replica in hub.fleet.replicas.values():
            if replica.live and replica.replica_id not in replaced:
                live[replica.model, replica.profile] += 1
        for key, count in live.items():
            found = hub.catalog.find(*key)
            wanted = found[1].replicas if found is not None else 0
            self.expect(
                count <= wanted,
                "3 one replacement",
                f"{count} replicas of {key[0]} are live after a decision, {wanted} are wanted",
            )

    def _seats(self, hub: Hub) -> None:
        fleet = hub.fleet
        owner: dict[tuple[str, str], str] = {}
        self.checks["2 one owner"] += 1
        for replica in fleet.replicas.values():
            for rank, seat in replica.seats.items():
                shard = replica.shards.get(rank)
                if not (shard.holds_gpus if shard is not None else replica.live):
                    continue
                if replica.state is ReplicaState.ADOPTING:
                    continue  # what agents report may be contested; it is not adopted then
                for gpu in seat.gpus:
                    other = owner.setdefault((seat.node_id, gpu), replica.replica_id)
                    if other != replica.replica_id and shard is not None and shard.phase != LOST:
                        self.expect(False, "2 one owner", f"{gpu} belongs to {other} and {replica.replica_id}")
            if replica.nodes > 1 and replica.live:
                self.expect(replica.fabric is not None, "1", f"{replica.replica_id} spans nodes without a fabric")
                for node_id in replica.node_ids:
                    machine = self._world.machines.get(node_id)
                    self.expect(
                        machine is None or replica.fabric in machine.plan.fabrics,
                        "1",
                        f"{replica.replica_id} on {replica.fabric} sits on {node_id}, which is not on it",
                    )


def _must_leave(hub: Hub, replica: Replica) -> bool:
    found = hub.catalog.find(replica.model, replica.profile)
    return (
        any(node.draining for name in replica.node_ids if (node := hub.fleet.nodes.get(name)) is not None)
        or (found is not None and found[0].profile_hashes[replica.profile] != replica.profile_hash)
        or replica.restart_by is not None
    )
