"""What reading and judging a map of the fabric costs: a director's size, 10,000 adapters, and how it grows.

The maps are made here; nothing but `llmgw/fabric` runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from llmgw.fabric.report import analyse, report_fabric
from llmgw.fabric.svg import draw_svg
from tests.bench.figures import Figures
from tests.fabric.generate import fat_tree

DIRECTOR_LIMIT_S = 0.5
LARGE_LIMIT_S = 2.0
DIRECTOR_ADAPTERS = 2300
"""A text of 920 kB."""
SIZES = (625, 1250, 2500, 5000, 10000)
RAILS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Limits are those of 10,000 adapters."""
    parser.add_argument("--adapters", type=int, default=10000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--map", type=Path, metavar="FILE", help="a saved map to measure besides")


def run(options: argparse.Namespace) -> Figures:
    """Measure and return the figures."""
    figures = Figures(f"fabric: {options.adapters} adapters")
    director = fabric_text(DIRECTOR_ADAPTERS)
    figures.add("a director's map, text", len(director) / 1e3, "kB")
    figures.add("a director's map, read and judged", _median_s(director, options.repeat), "s", DIRECTOR_LIMIT_S)
    if options.map is not None:
        saved = options.map.read_text(errors="replace")
        took = _median_s(saved, options.repeat)
        figures.add(f"{options.map.name}, text", len(saved) / 1e3, "kB")
        figures.add(f"{options.map.name}, read and judged", took, "s", DIRECTOR_LIMIT_S)
    large = fabric_text(options.adapters)
    figures.add("the large map, lines", large.count("\n"), "lines")
    figures.add("the large map, read and judged", _median_s(large, options.repeat), "s", LARGE_LIMIT_S)
    analysis = analyse(large)
    figures.add("the large map, drawn as SVG", _seconds(lambda: draw_svg(analysis)), "s")
    rows = []
    for size in [size for size in SIZES if size <= options.adapters]:
        text = fabric_text(size)
        took = _median_s(text, options.repeat)
        lines = text.count("\n")
        rows.append([str(size), str(lines), f"{1000 * took:.0f}", f"{1e6 * took / lines:.1f}"])
    figures.growth.append(("how it grows", ["adapters", "lines", "ms", "µs a line"], rows))
    return figures


def fabric_text(adapters: int) -> str:
    """Eight rails, three tiers, 32 nodes a block: near enough to six lines an adapter, as real maps have."""
    nodes = max(1, adapters // RAILS)
    blocks = max(1, nodes // 32)
    leaves = RAILS * blocks
    return fat_tree(nodes=nodes, rails=RAILS, leaves=leaves, spines=16, trunk=1, cores=8, degraded=3).text()


def _median_s(text: str, repeat: int) -> float:
    return statistics.median(_seconds(lambda: report_fabric(analyse(text))) for _ in range(repeat))


def _seconds(work: Callable[[], object]) -> float:
    # Nothing here waits, so that CPU time is what a quiet machine's clock would show.
    begun = time.process_time()
    work()
    return time.process_time() - begun
