"""What is wrong with one node, by its own account and by the control plane's, as findings."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.fleet.model import Node, NodeState, Replica, Shard
from llmgw.messages.findings import Finding
from llmgw.pki.certificates import day


def node_findings(
    node: Node, shards: Iterable[tuple[Replica, Shard]], clone: str | None, version: str | None = None
) -> list[Finding]:
    """What is wrong with a node, by its own account and by ours. `shards` are those on it that are not over,
    `clone` is why its clone was refused, `version` why its agent is not let in for its version.
    """
    found = []
    if clone is not None:
        found.append(
            Finding(
                check="cloned-machine",
                severity="error",
                where=node.node_id,
                what=clone,
                why="two machines under one identity would use each other's commands",
                remedy="give the clone a host name of its own, then `llmgw ctl cert issue-client`",
            )
        )
    if version is not None:
        found.append(
            Finding(
                check="agent-version",
                severity="error",
                where=node.node_id,
                what=version,
                why="server and agent would misunderstand each other; what runs on the node goes on",
                remedy=f"install there what the server runs: `llmgw onboard-node --node {node.node_id} …`",
            )
        )
    if node.suspect is not None:
        found.append(
            Finding(
                check="suspect-node",
                severity="warning",
                where=node.node_id,
                what=f"{node.node_id} is placed on last: {node.suspect}",
                why="what fails here and runs elsewhere is often the machine's fault",
                remedy=f"run `llmgw doctor` there; `llmgw ctl cordon {node.node_id}` keeps it out",
            )
        )
    return [*_gpus_gone(node, shards), *found, *node.inventory.findings]


def _gpus_gone(node: Node, shards: Iterable[tuple[Replica, Shard]]) -> list[Finding]:
    """GPUs that shards of the node run on and that its agent does not report any more."""
    if node.state is not NodeState.READY:
        return []
    there = {gpu.uuid for gpu in node.gpus}
    found = []
    for _, shard in shards:
        gone = [uuid for uuid in shard.spec.gpus if uuid not in there]
        if gone:
            found.append(
                Finding(
                    check="gpu-gone",
                    severity="error",
                    where=node.node_id,
                    what=f"{shard.shard_id} was started on {', '.join(gone)}, which {node.node_id} has no more",
                    why="a GPU that fell off the bus answers nobody: what ran on it is dead, or hangs",
                    remedy=f"`llmgw ctl drain {node.node_id}`, look at dmesg there (Xid 79), and power-cycle it",
                )
            )
    return found


def certificate_findings_of(node: Node, wall: float) -> list[Finding]:
    """That the certificate of a node that is away has ended: it cannot say so itself any more, nor come back."""
    ends = node.certificate_expires_at
    if node.state is NodeState.READY or ends is None or ends > wall:
        return []
    return [
        Finding(
            check="certificate-expired",
            severity="error",
            where=node.node_id,
            what=f"{node.node_id} is {node.state}, and its certificate expired on {day(ends)}",
            why="its agent is refused until it has another; what runs there goes on",
            remedy=f"`llmgw ctl cert renew {node.node_id}` on the authority's host; copy the files to it",
        )
    ]
