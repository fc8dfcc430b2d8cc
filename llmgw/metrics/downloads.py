"""Downloads of models while they run. The same of a server and of an agent."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.messages.agent import Progress
from llmgw.metrics.family import Family

_LABELS = ("node", "model")
_BOUND = "nodes × models that they fetch"

DONE = Family(
    "llmgw_download_done_bytes",
    "gauge",
    "What a node has of a model that it is fetching; absent once it has it, or has given up",
    _LABELS,
    _BOUND,
)
SIZE = Family(
    "llmgw_download_size_bytes",
    "gauge",
    "How large what is being fetched is; absent until its source has said so",
    _LABELS,
    _BOUND,
)
RATE = Family("llmgw_download_rate_bytes_per_second", "gauge", "How fast a download is now", _LABELS, _BOUND)
FAMILIES = (DONE, SIZE, RATE)


def download_text(fetching: Iterable[tuple[str, str, Progress]]) -> str:
    """Every family, of (node, model, progress). Shards of a model share their node's download."""
    furthest: dict[tuple[str, str], Progress] = {}
    for node_id, model, progress in fetching:
        known = furthest.get((node_id, model))
        if known is None or (progress.done_bytes or 0) > (known.done_bytes or 0):
            furthest[node_id, model] = progress
    return (
        DONE.text((at, progress.done_bytes) for at, progress in furthest.items())
        + SIZE.text((at, progress.total_bytes) for at, progress in furthest.items())
        + RATE.text((at, progress.rate_bytes_s) for at, progress in furthest.items())
    )
