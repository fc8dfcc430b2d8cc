"""Charts of a stretch of time as SVG paths, ticks and a table: numbers in, text out, nothing of the fleet.

A chart is drawn where the template `charts.html` says so; it needs no script, and each has its figures as words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 380.0, 168.0
"""Of the view box; close to the pixels that a chart is shown in, so that its words are as large as others."""
LEFT, RIGHT, TOP, BOTTOM = 44.0, 8.0, 10.0, 22.0
"""Room around the field: for the words of the axes."""
Y_TICKS_MAX = 4
X_TICKS = 4
COLUMNS_MAX = 60
ROWS_MAX = 12

Fold = Callable[[Sequence[float]], float]
"""What stands for several steps: their mean, or the highest of them. Never called with none."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart: its name, and a value for each time; None where there is none."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A place on an axis, in units of the view box, and its words."""

    at: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """A series as drawn. `path` and `area` are SVG path data; `number` tells lines of a chart apart, from 1."""

    name: str
    number: int
    path: str
    area: str
    last: str
    highest: str


@dataclass(frozen=True, kw_only=True)
class Column:
    """A stretch of the chart that says its figures where it is pointed at."""

    x: float
    width: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a chart's table: the time at which it begins, and the words of each series."""

    at: float
    words: list[str]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Everything that `charts.html` draws. `key` is a word for ids on the page."""

    key: str
    title: str
    unit: str
    summary: str
    lines: list[Line]
    y_ticks: list[Tick]
    x_ticks: list[Tick]
    columns: list[Column]
    rows: list[Row]
    row_s: float
    row_words: str
    empty: bool
    """Not one value: the field is bare, and says so."""

    @property
    def box(self) -> str:
        """The SVG's view box."""
        return f"0 0 {WIDTH:g} {HEIGHT:g}"

    @property
    def field(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of what the lines are drawn in."""
        return LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM


def mean(values: Sequence[float]) -> float:
    """For what adds up, such as rates."""
    return sum(values) / len(values)


def draw(
    key: str,
    title: str,
    unit: str,
    times: Sequence[float],
    series: Sequence[Series],
    *,
    until: float,
    span_s: float,
    step_s: float,
    words: Callable[[float], str],
    fold: Fold = mean,
) -> Chart:
    """A chart of the `span_s` seconds before `until`, both in seconds since the epoch.

    `times` are when steps of `step_s` begin, the oldest first, and each series has as many values. `words` says a
    value with its unit; `fold` what stands for several steps in the table. What is older than the span is left
    out.
    """
    began = until - span_s
    there = [index for index, at in enumerate(times) if at + step_s / 2 >= began]
    top = _ceiling(max((_known(one.values[i]) for one in series for i in there), default=0.0))

    def x(at: float) -> float:
        return LEFT + (min(max(at, began), until) - began) / span_s * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - min(value / top, 1.0) * (HEIGHT - TOP - BOTTOM)

    lines = []
    for number, one in enumerate(series, 1):
        points = [(x(times[i] + step_s / 2), _place(one.values[i], y)) for i in there]
        known = [value for i in there if (value := one.values[i]) is not None]
        path, area = _path(points)
        last = one.values[there[-1]] if there else None
        lines.append(
            Line(
                name=one.name,
                number=number,
                path=path,
                area=area if number == 1 else "",
                last="–" if last is None else words(last),
                highest=words(max(known)) if known else "–",
            )
        )
    each = max(step_s, math.ceil(span_s / COLUMNS_MAX / step_s) * step_s)
    long = max(step_s, math.ceil(span_s / ROWS_MAX / step_s) * step_s)
    picked = [times[i] for i in there]
    values = [[one.values[i] for i in there] for one in series]
    return Chart(
        key=key,
        title=title,
        unit=unit,
        summary="; ".join(f"{line.name}: now {line.last}, highest {line.highest}" for line in lines),
        lines=lines,
        y_ticks=[Tick(at=round(y(value), 1), words=_short(value)) for value in _ticks(top)],
        x_ticks=[
            Tick(at=round(x(until - part * span_s / X_TICKS), 1), words=_ago(part * span_s / X_TICKS))
            for part in range(X_TICKS, -1, -1)
        ],
        columns=[
            Column(
                x=round(x(at), 1),
                width=round(x(at + each) - x(at), 1),
                words=f"{_ago(max(0.0, until - at))}: "
                + ", ".join(
                    f"{one.name} {_said(value, words)}" for one, value in zip(series, found, strict=True)
                ),
            )
            for at, found in _folded(picked, values, step_s, each, fold)
        ],
        rows=[
            Row(at=at, words=[_said(value, words) for value in found])
            for at, found in _folded(picked, values, step_s, long, fold)
        ],
        row_s=long,
        row_words="the mean" if fold is mean else "the highest",
        empty=not any(value is not None for one in values for value in one),
    )


def _folded(
    times: Sequence[float], values: Sequence[Sequence[float | None]], step_s: float, each_s: float, fold: Fold
) -> list[tuple[float, list[float | None]]]:
    """Stretches of `each_s` seconds with what stands for each series in them, the oldest first.

    They begin at full minutes of the clock, so that they stay the same while the chart moves on.
    """
    stretches: dict[int, list[int]] = {}
    for index, at in enumerate(times):
        stretches.setdefault(int((at + step_s / 2) // each_s), []).append(index)
    found = []
    for number, indexes in stretches.items():
        row = []
        for one in values:
            known = [value for i in indexes if (value := one[i]) is not None]
            row.append(fold(known) if known else None)
        found.append((number * each_s, row))
    return found


def _path(points: Sequence[tuple[float, float | None]]) -> tuple[str, str]:
    """The data of a line and of what lies below it. A gap ends one piece and begins another."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None:
            pieces[-1].append((x, y))
        elif pieces[-1]:
            pieces.append([])
    ground = HEIGHT - BOTTOM
    path, area = [], []
    for piece in pieces:
        if not piece:
            continue
        # A point alone is a line of no length, which a round cap makes a dot.
        joined = " ".join(
            f"{x:.1f} {y:.1f}" for x, y in piece if piece[1:]
        ) or "{0:.1f} {1:.1f} {0:.1f} {1:.1f}".format(*piece[0])
        path.append(f"M{joined}")
        area.append(f"M{piece[0][0]:.1f} {ground:.1f} {joined} {piece[-1][0]:.1f} {ground:.1f}Z")
    return "".join(path), "".join(area)


def _place(value: float | None, y: Callable[[float], float]) -> float | None:
    return None if value is None or not math.isfinite(value) else y(max(0.0, value))


def _known(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0


def _said(value: float | None, words: Callable[[float], str]) -> str:
    return "–" if value is None else words(value)


def _ceiling(highest: float) -> float:
    """A round number that nothing exceeds: where the axis ends. 1 where all is 0."""
    if highest <= 0:
        return 1.0
    step = _round_step(highest / Y_TICKS_MAX)
    return math.ceil(highest / step - 1e-9) * step


def _ticks(top: float) -> list[float]:
    step = _round_step(top / Y_TICKS_MAX)
    return [step * number for number in range(int(top / step + 1e-9) + 1)]


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(each * power for each in (1.0, 2.0, 2.5, 5.0, 10.0) if each * power >= least * (1 - 1e-9))


def _short(value: float) -> str:
    """A number of an axis: at most five characters."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 10 or (value >= size and value % size == 0):
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _ago(seconds: float) -> str:
    return "now" if seconds < 1 else f"{seconds / 60:.0f} min ago" if seconds >= 59.5 else f"{seconds:.0f} s ago"
