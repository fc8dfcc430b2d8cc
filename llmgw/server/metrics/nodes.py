"""Nodes: what is believed of each, and how many of their GPUs are free."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from llmgw.fleet.model import NodeState
from llmgw.metrics.family import Family, LastSample
from llmgw.server.metrics.source import Source

NODES = Family("llmgw_nodes", "gauge", "Nodes by state", ("state",), "4")
INFO = Family("llmgw_node_info", "gauge", "The version of a node's agent; always 1", ("node", "version"), "nodes")
STATE = Family(
    "llmgw_node_state",
    "gauge",
    "1 for what is believed of a node: ready, unreachable, lost, or unknown until it registers; else 0",
    ("node", "state"),
    "4 × nodes",
)
CORDONED = Family("llmgw_node_cordoned", "gauge", "1 while nothing is placed on a node", ("node",), "nodes")
DRAINING = Family("llmgw_node_draining", "gauge", "1 while everything is moved off a node", ("node",), "nodes")
SILENCE = Family(
    "llmgw_node_silence_seconds",
    "gauge",
    "Since a node's agent was last heard; absent until it registers",
    ("node",),
    "nodes",
)
GPUS = Family(
    "llmgw_gpus",
    "gauge",
    "GPUs of a node: in_use, free, or unusable (broken, skipped, or held by others)",
    ("node", "state"),
    "3 × nodes",
)
FAMILIES = (NODES, INFO, STATE, CORDONED, DRAINING, SILENCE, GPUS)
_GPU_STATES = ("free", "in_use", "unusable")


def node_text(source: Source) -> str:
    """Every family of nodes."""
    nodes = source.hub.fleet.nodes.values()
    by_state = Counter(node.state for node in nodes)
    now = source.hub.clock.monotonic()
    silence = (
        ((node.node_id,), max(0.0, now - node.last_heard)) for node in nodes if math.isfinite(node.last_heard)
    )
    return (
        NODES.text(((state.value,), by_state[state]) for state in NodeState)
        + INFO.text(((node.node_id, node.version or "unknown"), 1) for node in nodes)
        + STATE.grouped(
            ((node.node_id,), [(state.value, int(node.state is state)) for state in NodeState]) for node in nodes
        )
        + CORDONED.text(((node.node_id,), int(node.cordoned)) for node in nodes)
        + DRAINING.text(((node.node_id,), int(node.draining)) for node in nodes)
        + SILENCE.text(silence)
        + GPUS.grouped(_gpus(source))
    )


def _gpus(source: Source) -> Iterator[tuple[tuple[str], list[LastSample]]]:
    used = source.hub.fleet.gpus_in_use()
    for node in source.hub.fleet.nodes.values():
        in_use = used.get(node.node_id, set())
        states = Counter(
            "in_use" if gpu.uuid in in_use else "free" if gpu.usable else "unusable" for gpu in node.gpus
        )
        yield (node.node_id,), [(state, states[state]) for state in _GPU_STATES]
