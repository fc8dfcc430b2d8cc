"""What reconcile decides. Each action is a value; `carry_out` makes it happen."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.fleet.model import Seat


@dataclass(frozen=True, slots=True)
class EndSettling:
    """Every known node has registered, or the time is over."""

    reason: str


@dataclass(frozen=True, slots=True)
class NodeUnreachable:
    """The agent is silent; the node's shards work, or it holds none."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Both witnesses are silent, or the long limit is over."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DoubtSilence:
    """Most nodes fell silent together: the fault is on this side, and nothing is declared lost."""

    node_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class EndDoubt:
    """Enough of them are back; the others get another while."""

    reason: str


@dataclass(frozen=True, slots=True)
class SuspectNode:
    """Several profiles failed there and run elsewhere: place on it last."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class TrustNode:
    """Nothing has failed there for a while."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class StopRollout:
    """The new form of a profile does not come up: go back to the one that serves."""

    model: str
    profile: str
    bad_form: str
    good_form: str
    reason: str


@dataclass(frozen=True, slots=True)
class AdoptReplica:
    """A reported replica is whole: it is ours from now on."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Send the leader's start; workers follow when it says where they meet."""

    replica_id: str
    model: str
    profile: str
    seats: tuple[Seat, ...]
    fabric: str | None
    replaces: str | None


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """The leader has said where it waits: send the workers' starts."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class ReplicaReady:
    """The leader answered a request and every rank is there."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class FailReplica:
    """Give a replica up and reap what is left of it. `penalty` counts towards its profile's backoff."""

    replica_id: str
    reason: str
    penalty: bool
    given_up: bool = False
    evicted: bool = False
    """It may still have been serving: counts towards invariant 11."""


@dataclass(frozen=True, slots=True)
class SuspendReplica:
    """It has work and shows no progress: out of the rotation, its shards untouched."""

    replica_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReturnReplica:
    """A suspended replica has shown progress: back into the rotation."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class SetOutage:
    """The fabric is down on these of a replica's nodes; where it was down already, others have joined or gone."""

    replica_id: str
    node_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CutOff:
    """The fabric stays down under a replica: out of the rotation, its shards untouched."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class EndOutage:
    """The fabric is up again under a replica: back into the rotation, if it had left it."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class ResumeReplica:
    """A replica that was given up has returned, and its place is not taken.

    `for_itself`: it was to replace another one, and meanwhile its model moves without it.
    """

    replica_id: str
    for_itself: bool = False


@dataclass(frozen=True, slots=True)
class DrainReplica:
    """Withdraw its route; it is stopped when its requests have run out."""

    replica_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Stop every rank now."""

    replica_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SendStop:
    """Tell an agent to end a shard."""

    node_id: str
    shard_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReapReplica:
    """Nothing of it is left on any node that speaks."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class DropInherited:
    """A route of the previous server's table is not confirmed by anybody."""

    endpoint_id: str
    reason: str


Action = (
    EndSettling
    | NodeUnreachable
    | NodeLost
    | DoubtSilence
    | EndDoubt
    | SuspectNode
    | TrustNode
    | StopRollout
    | AdoptReplica
    | StartReplica
    | StartWorkers
    | ReplicaReady
    | FailReplica
    | SuspendReplica
    | ReturnReplica
    | SetOutage
    | CutOff
    | EndOutage
    | ResumeReplica
    | DrainReplica
    | StopReplica
    | SendStop
    | ReapReplica
    | DropInherited
)
