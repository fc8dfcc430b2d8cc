"""What is being done to the fleet just now, in sentences: settling, drains, an upgrade of the agents. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from llmgw.messages.admin import NodeView
from llmgw.messages.upgrade_views import GOOD, OVER, UpgradeView
from llmgw.server.pages.addresses import node_url

DRAINS_SHOWN_MAX = 12


@dataclass(frozen=True, slots=True)
class Doing:
    """One thing. `name` has the page `href`, where it has one; `details` are sentences behind a fold."""

    name: str
    what: str
    href: str | None = None
    stuck: bool = False
    details: list[str] = field(default_factory=list)


def under_way(*, settling: bool, nodes: Iterable[NodeView], upgrade: UpgradeView | None) -> list[Doing]:
    """Everything that goes on."""
    found: list[Doing] = []
    if settling:
        found.append(Doing("The server", "has just started: nothing new is placed until its nodes are back"))
    if upgrade is not None and upgrade.state == "running":
        found.append(_upgrade(upgrade))
    draining = [node for node in nodes if node.draining]
    # What waits for a person comes first.
    draining.sort(key=lambda node: (not node.drain_left, not node.replicas, node.node_id))
    found += [_drain(node) for node in draining[:DRAINS_SHOWN_MAX]]
    if len(draining) > DRAINS_SHOWN_MAX:
        rest = len(draining) - DRAINS_SHOWN_MAX
        found.append(Doing(f"{rest} more nodes", "are draining", "/admin/nodes?q=draining"))
    return found


def _drain(node: NodeView) -> Doing:
    left = len(node.replicas)
    if not left:
        what = "is drained: nothing runs there"
    else:
        what = f"is draining: {left} replica{'' if left == 1 else 's'} left"
        if node.drain_left:
            what += f", {len(node.drain_left)} of them cannot be moved"
    details = [*node.drain_left, *node.drain_waits]
    return Doing(node.node_id, what, node_url(node.node_id), bool(node.drain_left), details)


def _upgrade(upgrade: UpgradeView) -> Doing:
    over = [node for node in upgrade.nodes if node.state in OVER]
    bad = sum(node.state not in GOOD for node in over)
    what = f"are upgraded to llmgw {upgrade.version}: {len(over)} of {len(upgrade.nodes)} nodes done"
    if bad:
        what += f", {bad} of them not as wanted"
    if upgrade.cancelled_by is not None:
        what += f"; cancelled by {upgrade.cancelled_by}, and what has begun is let finish"
    now = [node for node in upgrade.nodes if node.state not in OVER and node.state != "waiting"]
    details = [f"{node.node}: {node.state}{f', {node.stage}' if node.stage else ''}" for node in now]
    details += [f"{node.node}: {node.state}: {node.reason}" for node in over if node.state not in GOOD]
    return Doing("The agents", what, details=details)
