"""The shards of this node: how many are in which phase, what they fetch, and what their engines say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from llmgw.messages.agent import LIVE_PHASES, SHARDS_PER_NODE_MAX, EngineFigures, HeldShard
from llmgw.metrics.downloads import download_text
from llmgw.metrics.engines import engine_text
from llmgw.metrics.family import Family, Sample

PHASES = ("fetching", "waiting", "starting", "ready", "stopping")

SHARDS = Family(
    "llmgw_shards",
    "gauge",
    "Shards of a node by model and phase: fetching, waiting (for their leader), starting, ready, or stopping",
    ("node", "model", "phase"),
    f"5 × models that run there, at most {SHARDS_PER_NODE_MAX} a node",
)
FAILED = Family(
    "llmgw_shard_failures_total",
    "counter",
    "Shards of a node that failed since its agent started; the server starts their replica anew",
    ("node", "model"),
    "models that failed there, at most 256",
)
FAMILIES = (SHARDS, FAILED)


def shard_text(node_id: str, held: Sequence[HeldShard], failed: Mapping[str, int]) -> str:
    """Every family of shards, downloads and engines. `failed` counts by model."""
    live = [shard for shard in held if shard.phase in LIVE_PHASES]
    said: dict[str, list[EngineFigures]] = {}
    for shard in live:
        if shard.figures is not None:
            said.setdefault(shard.spec.model, []).append(shard.figures)
    return (
        SHARDS.text(_phases(node_id, live))
        + FAILED.text(((node_id, model), count) for model, count in sorted(failed.items()))
        + download_text(
            (node_id, shard.spec.model, shard.progress)
            for shard in live
            if shard.phase == "fetching" and shard.progress is not None
        )
        + engine_text(said)
    )


def _phases(node_id: str, live: Sequence[HeldShard]) -> Iterator[Sample]:
    counts: Counter[tuple[str, str]] = Counter((shard.spec.model, shard.phase) for shard in live)
    for model in sorted({shard.spec.model for shard in live}):
        for phase in PHASES:
            yield (node_id, model, phase), counts[model, phase]
