"""What is wrong with the fleet and with a node, as findings. The store and the routers have their own."""

from __future__ import annotations

from llmgw.fleet.model import Fleet, Node
from llmgw.messages.findings import Finding


def fleet_findings(fleet: Fleet) -> list[Finding]:
    """What is wrong with the fleet as a whole."""
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


def node_findings(node: Node, clone: str | None) -> list[Finding]:
    """What is wrong with a node, by its own account and by ours. `clone` is why its clone was refused."""
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
    return [*found, *node.inventory.findings]
