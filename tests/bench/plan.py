"""What one decision of the core costs: a steady fleet, an empty one that fills, and how it grows.

The fleet is pure data, its agents answer at once, and nothing but `llmgw/fleet` runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from llmgw.config.catalog import Catalog, CatalogModel
from tests.bench.figures import Figures
from tests.bench.fleets import LargeFleet, mapped, mixed_catalog

STEADY_LIMIT_MS = 50.0
FILL_LIMIT_S = 2.0
CHANGED = (1, 5, 25, 50)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The size of the fleet; limits are those of 1,000 nodes and 500 replicas."""
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=500)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=3, help="fills; a steady plan is asked ten times as often")


def run(options: argparse.Namespace) -> Figures:
    """Measure and return the figures."""
    figures = Figures(f"plan: {options.nodes} nodes × 8 GPUs, {options.replicas} replicas")
    catalog = mixed_catalog(options.models, options.replicas)
    fills = []
    for _ in range(options.repeat):
        large = LargeFleet(catalog, options.nodes)
        large.register_all()
        fills.append(_seconds(large.until_quiet))
    ready = sum(replica.state == "ready" for replica in large.fleet.replicas.values())
    figures.add("ready replicas after the fill", ready, "replicas")
    steady = [1000 * _seconds(large.plan) for _ in range(options.repeat * 10)]
    figures.add("a steady plan, median", statistics.median(steady), "ms", STEADY_LIMIT_MS)
    figures.add("a steady plan, worst", max(steady), "ms")
    figures.add("filling an empty fleet, median", statistics.median(fills), "s", FILL_LIMIT_S)
    for fabrics in (10, 1):
        of = f"{fabrics} mapped fabric{'s' if fabrics > 1 else ''}"
        fills = []
        for _ in range(options.repeat):
            large = LargeFleet(catalog, options.nodes, fabrics)
            large.register_all()
            large.fleet.fabric_facts = mapped(large.fleet)
            fills.append(_seconds(large.until_quiet))
        steady = [1000 * _seconds(large.plan) for _ in range(options.repeat * 10)]
        figures.add(f"a steady plan on {of}, median", statistics.median(steady), "ms", STEADY_LIMIT_MS)
        figures.add(f"filling an empty fleet on {of}, median", statistics.median(fills), "s", FILL_LIMIT_S)
    figures.growth.append(
        (
            "the plan after profiles were changed (scaled up by one), median ms",
            ["nodes", *(f"{count} changed" for count in CHANGED)],
            [_growth(options, options.nodes // part) for part in (4, 2, 1)],
        )
    )
    return figures


def _growth(options: argparse.Namespace, nodes: int) -> list[str]:
    replicas = options.replicas * nodes // options.nodes
    large = LargeFleet(mixed_catalog(max(CHANGED), replicas), nodes)
    large.register_all()
    large.until_quiet()
    row = [str(nodes)]
    before = large.catalog
    for count in CHANGED:
        changed = [_scaled_up(model) for model in before.models[:count]]
        large.catalog = Catalog(models=[*changed, *before.models[count:]])
        asked = [1000 * _seconds(large.plan) for _ in range(options.repeat)]
        row.append(f"{statistics.median(asked):.1f}")
    return row


def _scaled_up(model: CatalogModel) -> CatalogModel:
    profile = model.profiles[0]
    return model.model_copy(update={"profiles": [profile.model_copy(update={"replicas": profile.replicas + 1})]})


def _seconds(work: Callable[[], object]) -> float:
    # Nothing here waits, so that CPU time is what a quiet machine's clock would show.
    begun = time.process_time()
    work()
    return time.process_time() - begun
