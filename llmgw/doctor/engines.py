"""The engines that this node is configured to run: whether their programs start, and who may talk to them."""

from __future__ import annotations

from llmgw.doctor.check import Node
from llmgw.engines import registry
from llmgw.engines.offers import engine_offers
from llmgw.messages.findings import Finding

_WHY = "Models that want this engine are not placed on this node"


def check_engines(node: Node) -> list[Finding]:
    """One finding an engine that cannot run, one that anyone may talk to, and one when there is none at all.

    Looks at files, starts nothing.
    """
    config = node.config
    adapters = registry.offered(config)
    findings: list[Finding] = []
    if not adapters:
        return [
            node.finding(
                "engine-none",
                "warning",
                "engines",
                "no engine is configured",
                why="Nothing is ever placed on this node",
                remedy="name those that are installed under engines in agent.yaml, for example llamacpp: {}",
            )
        ]
    for offer in engine_offers(adapters, config):
        if offer.problem is not None:
            what, _, remedy = offer.problem.partition("; ")
            findings.append(
                node.finding("engine-program", "error", f"engines.{offer.name}", what, why=_WHY, remedy=remedy)
            )
    findings += [
        node.finding(
            "engine-open",
            "info",
            f"engines.{adapter.name}",
            f"{adapter.name} takes no key that others on the node could not read, and so demands none",
            why="Whoever reaches its port can use the model behind the gateway's back",
            remedy=f"let only the gateway's host reach TCP ports {config.supervisor.port_range} of this node",
        )
        for adapter in adapters
        if not adapter.takes_key
    ]
    return findings
