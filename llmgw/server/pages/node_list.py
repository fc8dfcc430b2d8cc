"""Which nodes a filter's words mean, those with problems first. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.messages.admin import NodeView
from llmgw.server.pages.node_words import gpu_states, node_rank


def find_nodes(nodes: Iterable[NodeView], asked: str) -> list[NodeView]:
    """The nodes of which every word of `asked` says something, whatever its case: of the name, the state, the
    reason, the version, the hardware, the fabrics, the engines, what runs there, or what was found."""
    words = asked.lower().split()
    found = [node for node in nodes if not words or _means(node, words)]
    return sorted(found, key=node_rank)


def _means(node: NodeView, words: list[str]) -> bool:
    said = "\n".join(_said(node)).lower()
    return all(word in said for word in words)


def _said(node: NodeView) -> Iterable[str]:
    yield node.node_id
    yield node.state
    yield from (word for word, on in (("draining", node.draining), ("cordoned", node.cordoned)) if on)
    yield from (each for each in (node.reason, node.address, node.version) if each)
    yield from {gpu.name for gpu in node.gpus}
    yield from set(gpu_states(node))
    yield from (offer.name if offer.usable else f"{offer.name} unusable" for offer in node.fabrics)
    yield from {port.adapter for port in node.ports}
    yield from node.engines
    yield from node.replicas
    for finding in node.findings:
        yield from (finding.check, finding.severity, finding.what)
