"""What pages say of a node and of its GPUs in a word, and how bad that is. Pure.

A tone is `good`, `warn`, `bad` or `quiet`: the class of a badge, which also has a sign and a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llmgw.messages.admin import NodeView
from llmgw.messages.agent import Gpu

Tone = Literal["good", "warn", "bad", "quiet"]
GpuState = Literal["in use", "free", "broken", "held", "skipped"]

TONES: Mapping[str, Tone] = {"ready": "good", "unreachable": "warn", "lost": "bad", "unknown": "quiet"}
GPU_TONES: Mapping[GpuState, Tone] = {
    "in use": "good",
    "free": "quiet",
    "broken": "bad",
    "held": "warn",
    "skipped": "quiet",
}


@dataclass(frozen=True, slots=True)
class Badge:
    """A word and its tone."""

    tone: Tone
    word: str


def node_badges(node: NodeView) -> list[Badge]:
    """Its state, and what an operator has set."""
    badges = [Badge(TONES.get(node.state, "quiet"), node.state)]
    if node.draining:
        badges.append(Badge("warn", "draining"))
    if node.cordoned:
        badges.append(Badge("quiet", "cordoned"))
    return badges


def node_rank(node: NodeView) -> tuple[int, str]:
    """The order of a list that has problems first: lower is worse."""
    severities = {finding.severity for finding in node.findings}
    ranks = (
        node.state == "lost",
        node.state == "unreachable",
        "error" in severities,
        node.state != "ready",
        "warning" in severities,
        node.draining,
        node.cordoned,
        "info" in severities,
    )
    return next((rank for rank, holds in enumerate(ranks) if holds), len(ranks)), node.node_id


def gpu_state(gpu: Gpu, in_use: bool) -> GpuState:
    """What a GPU is to placement. One that breaks under a shard is broken."""
    if gpu.usable:
        return "in use" if in_use else "free"
    if gpu.unusable_kind == "held":
        return "held"
    return "skipped" if gpu.unusable_kind == "skipped" else "broken"


def gpu_states(node: NodeView) -> list[GpuState]:
    """Of each of its GPUs, in their order."""
    used = set(node.gpus_in_use)
    return [gpu_state(gpu, gpu.index in used) for gpu in node.gpus]
