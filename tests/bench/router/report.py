"""The bench's tables: goals and whether they are met, what each target needed, and what each feature costs."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.figures import Figures
from tests.bench.router.features import EVERYTHING, FEATURES, costs_us
from tests.bench.router.goals import DIRECT, GOALS, median
from tests.bench.router.leaving import LEAVINGS
from tests.bench.router.measurement import Measurement
from tests.bench.router.suites import SUITES

BEGIN_MARK = "<!-- figures -->"
END_MARK = "<!-- /figures -->"
_LOADED = [suite for suite in SUITES if suite.name not in ("memory", *(f"leaving-{kind}" for kind in LEAVINGS))]


def fill(
    figures: Figures, measurements: Sequence[Measurement], versions: dict[str, str], notes: Sequence[str]
) -> None:
    """Put figures, goals and tables together."""
    for goal in GOALS:
        value = goal.value(measurements)
        if value is not None:
            figures.add(goal.what, value, goal.unit, limit=goal.most, least=goal.least)
    figures.measurements = [each.told() for each in measurements]
    figures.notes = list(notes)
    targets = list(versions)
    tables = [
        ("CPU time an operation, µs (of it in the kernel)", *_cpu(measurements, targets)),
        (
            "latency of a request at 500 a second, µs; of a chunk at 10,000 a second",
            *_latency(measurements, targets),
        ),
        ("open streams, memory of one", *_memory(measurements, targets)),
        ("client gone → engine's connection closed: p50 / slowest, ms", *_leaving(measurements, targets)),
        ("what a feature costs a request", *_features(measurements)),
    ]
    figures.growth = [(title, columns, rows) for title, columns, rows in tables if rows]


Table = tuple[list[str], list[list[str]]]


def _cpu(measurements: Sequence[Measurement], targets: list[str]) -> Table:
    suites = [suite for suite in _LOADED if any(each.suite == suite.name for each in measurements)]
    rows = []
    for target in targets:
        row = []
        for suite in suites:
            value = median(measurements, suite.name, target, "cpu_us")
            kernel = median(measurements, suite.name, target, "system_us")
            row.append("" if value is None or kernel is None else f"{_short(value)} ({_short(kernel)})")
        if any(row):
            rows.append([target, *row])
    return ["", *(f"{suite.about}, a {suite.operation}" for suite in suites)], rows


def _latency(measurements: Sequence[Measurement], targets: list[str]) -> Table:
    rows = []
    for target in targets:
        values = [
            median(measurements, suite, target, figure)
            for suite in ("rate", "paced")
            for figure in ("p50_us", "p99_us")
        ]
        if any(value is not None for value in values):
            rows.append([target, *("" if value is None else f"{value:,.0f}" for value in values)])
    return ["", "request p50", "request p99", "chunk p50", "chunk p99"], rows


def _memory(measurements: Sequence[Measurement], targets: list[str]) -> Table:
    rows = []
    for target in targets:
        value = median(measurements, "memory", target, "kib_per_stream")
        if value is not None:
            rows.append([target, f"{value:.1f}"])
    return ["", "KiB a stream"], rows


def _leaving(measurements: Sequence[Measurement], targets: list[str]) -> Table:
    found = {(each.suite, each.target): each for each in measurements if each.suite.startswith("leaving-")}
    rows = []
    for target in targets:
        row = [_left(found.get((f"leaving-{kind}", target))) for kind in LEAVINGS]
        if any(row):
            rows.append([target, *row])
    return ["", *LEAVINGS.values()], rows


def _left(found: Measurement | None) -> str:
    if found is None:
        return ""
    if found.failed:
        return found.failed
    times = "" if found.p50_us is None else f"{found.p50_us / 1000:.1f} / {found.max_ms or 0:.1f}"
    missed = (
        f"{found.missed} of {found.operations} missed" if found.missed else f"none of {found.operations} missed"
    )
    return f"{times}, {missed}" if times else missed


def _features(measurements: Sequence[Measurement]) -> Table:
    rows = []
    named = {name: about for name, (about, _) in FEATURES.items()} | {
        EVERYTHING: "all that is on in the suites above"
    }
    for name, about in named.items():
        costs = costs_us(measurements, name)
        if costs:
            low, _, high = statistics.quantiles(costs, n=4) if len(costs) > 1 else costs * 3
            rows.append(
                [name, about, f"{statistics.median(costs):+.1f}", f"{low:+.1f} to {high:+.1f}", str(len(costs))]
            )
    return ["", "", "µs", "the middle half of its turns", "turns"], rows


def _short(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def markdown(figures: Figures, versions: dict[str, str]) -> str:
    """The tables as documents have them."""
    linux = ".".join(platform.release().split(".")[:2])
    lines = [
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f} at the end, Linux {linux}, Python {platform.python_version()}. "
        + ", ".join(f"{name} {version}" for name, version in versions.items() if name != DIRECT)
        + ".",
        "",
        *_markdown_table(
            ["what", "goal", "measured", "met"],
            [
                [
                    each.what,
                    each.promise,
                    f"{each.shown} {each.unit}".strip(),
                    "no" if each.beyond_limit else "yes",
                ]
                for each in figures.figures
            ],
        ),
    ]
    for title, columns, rows in figures.growth:
        lines += ["", f"**{title[0].upper()}{title[1:]}**", "", *_markdown_table(columns, rows)]
    if figures.notes:
        lines += ["", *(f"- {note}" for note in figures.notes)]
    return "\n".join(lines) + "\n"


def write_markdown(path: Path, text: str) -> None:
    """Put the tables into a document, between its marks. A file without them becomes nothing else."""
    before = path.read_text() if path.exists() else ""
    begin, mark, rest = before.partition(BEGIN_MARK)
    _, end_mark, end = rest.partition(END_MARK)
    whole = f"{begin}{mark}\n{text}{end_mark}{end}" if mark and end_mark else text
    path.write_text(whole)


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * len(columns)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
