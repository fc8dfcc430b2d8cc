"""How replicas ended, kept for people: every rank's first failure and its last output, of the newest few."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from llmgw.fleet.model import LOST, Fleet
from llmgw.messages.agent import HeldShard

FAILURES_KEPT = 200


@dataclass(slots=True)
class FailedShard:
    """A shard's end: why, and its last output."""

    rank: int
    node: str
    reason: str
    exit_code: int | None
    output_tail: list[str]


@dataclass(slots=True)
class Failure:
    """A replica's end with every rank's last words. `at` is seconds since the epoch."""

    replica_id: str
    model: str
    profile: str
    at: float
    reason: str
    shards: dict[int, FailedShard] = field(default_factory=dict)


class Failures:
    """The newest `FAILURES_KEPT` of them, by replica id."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Failure] = OrderedDict()

    def get(self, replica_id: str) -> Failure | None:
        """How the replica ended, if that is kept."""
        return self._kept.get(replica_id)

    def note(self, fleet: Fleet, replica_id: str, reason: str, at: float) -> None:
        """A replica of the fleet has failed."""
        replica = fleet.replicas.get(replica_id)
        if replica is None:
            return
        failure = self._kept.get(replica_id) or Failure(replica_id, replica.model, replica.profile, at, reason)
        failure.reason = reason
        for rank, shard in replica.shards.items():
            if rank not in failure.shards and (shard.over or shard.phase == LOST):
                failure.shards[rank] = FailedShard(
                    rank, shard.node_id, shard.reason or shard.phase, shard.exit_code, shard.output_tail
                )
        self._kept[replica_id] = failure
        while len(self._kept) > FAILURES_KEPT:
            self._kept.popitem(last=False)

    def remember(self, fleet: Fleet, held: list[HeldShard]) -> None:
        """Agents say how other ranks ended: a rank's first end is the one worth keeping, and its last output.

        Also of ranks that were stopped for it: the one that hangs writes why, and another fails of it.
        """
        for item in held:
            failure, rank = self._kept.get(item.spec.replica_id), item.spec.rank
            if failure is None or item.phase not in ("failed", "stopped"):
                continue
            known = failure.shards.get(rank)
            if known is None:
                found = fleet.shard(item.spec.shard_id)
                node_id = found[1].node_id if found is not None else "?"
                failure.shards[rank] = FailedShard(
                    rank, node_id, item.reason or item.phase, item.exit_code, item.output_tail
                )
            elif not known.output_tail:
                known.output_tail = item.output_tail
