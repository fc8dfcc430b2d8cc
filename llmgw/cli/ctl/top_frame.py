"""Fits the fleet into a terminal: which columns, which rows, which words. Facts and a size in, lines out.

What there is no room for is chosen: columns by `Column.spare`, rows from the least important up, then whole
tables; what is left out is counted or named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.top_facts import Facts
from llmgw.cli.ctl.top_tables import (
    SIGNS,
    Cell,
    Table,
    model_table,
    node_table,
    problems,
    replica_table,
    router_table,
    summary,
)
from llmgw.cli.output import Column, format_age, plain
from llmgw.messages.findings import Finding

GAP = 2
NAME_CELLS_MIN, NAME_CELLS_MAX = 12, 36
"""How narrow the first column may become, and how wide it may be while others want room."""
LAST_CELLS_MIN = 24
"""Columns that the last column, which is cut, is left with before a column goes."""
PART_LINES_MIN = 3
"""A heading, one row, and how many more there are."""
# A table of the first kind gets two lines for each one of the others where there is not room for all.
_SHARES = {"problems": 2, "nodes": 2}
_LESS_IMPORTANT_FIRST = ("routers", "replicas", "nodes", "models")
_PLAIN_SIGNS = str.maketrans({"■": "#", "□": ".", "✕": "x", "▲": "!", "·": "-", "→": ">", "…": "~", "°": " "})


@dataclass(frozen=True)
class _Part:
    """A part of the frame that can be drawn in fewer lines than it would like."""

    title: str
    needs: int
    draw: Callable[[int], list[Text]]


def frame(
    facts: Facts | None,
    url: str,
    width: int,
    height: int | None,
    *,
    away: str | None = None,
    keys: str = "",
    ascii_only: bool = False,
    now: float | None = None,
) -> list[Text]:
    """The lines of one frame, none wider than `width`, not more than `height` (None: all of them).

    `away` is why the newest facts could not be had, a sentence; `facts` are then those of before, or None.
    `keys` says how to end it. `now` is the clock that ages of `facts` are told by.
    """
    lines = _head(facts, url, width, keys)
    if away is not None:
        since = "" if facts is None else f" This is {format_age((now or time.time()) - facts.at)} old."
        lines += _wrapped(f"{plain(away)}; asking again.{since}", width, 3, "bold red")
    if facts is not None:
        if facts.server.settling and (height is None or height > 8):
            lines.append(
                _line(
                    "the server has just started: it waits for its nodes, and places nothing yet", width, "yellow"
                )
            )
        too_narrow: list[str] = []
        parts = _parts(facts, width, too_narrow)
        left = None if height is None else height - len(lines)
        lines += _fitted(parts, left, width, too_narrow)
    lines = lines if height is None else lines[:height]
    return [_in_ascii(line) for line in lines] if ascii_only else lines


def _head(facts: Facts | None, url: str, width: int, keys: str) -> list[Text]:
    if facts is None:
        return [_sides(f"llmgw at {plain(url)}", keys, width)]
    age = format_age(max(0.0, facts.at - facts.server.started_at))
    clock = time.strftime("%H:%M:%S", time.localtime(facts.at))
    first = _sides(
        f"llmgw {cells.text(facts.server.version)} at {plain(url)} · up {age}",
        f"{clock}{f' · {keys}' if keys else ''}",
        width,
    )
    counts = ""
    for part in summary(facts):
        joined = f"{counts} · {part}" if counts else part
        if counts and cell_len(joined) > width:
            break
        counts = joined
    return [first, _line(counts, width, "bold")]


def _parts(facts: Facts, width: int, too_narrow: list[str]) -> list[_Part]:
    tables = (model_table(facts), node_table(facts), replica_table(facts), router_table(facts))
    return [_problems(problems(facts), width), *(_tabled(table, width, too_narrow) for table in tables)]


def _fitted(parts: Sequence[_Part], height: int | None, width: int, too_narrow: Sequence[str]) -> list[Text]:
    """All parts, with an empty line before each where there is room for that."""
    words = [f"too narrow for: {', '.join(dict.fromkeys(too_narrow))}"] if too_narrow else []
    if height is None:
        spaced = [line for part in parts for line in (Text(), *part.draw(part.needs))]
        return spaced + [_line("; ".join(words), width, "dim")] * bool(words)
    left_out: list[str] = []
    kept = list(parts)
    for title in _LESS_IMPORTANT_FIRST:
        if sum(min(part.needs, PART_LINES_MIN) for part in kept) + bool(words or left_out) <= height:
            break
        kept = [part for part in kept if part.title != title]
        left_out.append(title)
    if left_out:
        words.insert(0, f"too short for: {', '.join(reversed(left_out))}")
    granted = _granted(kept, height - bool(words))
    spare = height - bool(words) - sum(granted)
    lines: list[Text] = []
    for part, count in zip(kept, granted, strict=True):
        if spare > 0:
            lines.append(Text())
            spare -= 1
        lines += part.draw(count)
    return lines + [_line("; ".join(words), width, "dim")] * bool(words)


def _granted(parts: Sequence[_Part], height: int) -> list[int]:
    """How many lines each part gets: what it needs when all fit, else its least and then in turn."""
    granted = [min(part.needs, PART_LINES_MIN) for part in parts]
    left = height - sum(granted)
    while left > 0 and any(count < part.needs for count, part in zip(granted, parts, strict=True)):
        for at, part in enumerate(parts):
            more = min(_SHARES.get(part.title, 1), part.needs - granted[at], left)
            granted[at] += more
            left -= more
    return granted


def _problems(found: Sequence[Finding], width: int) -> _Part:
    if not found:
        return _Part("problems", 1, lambda count: [_line("NOTHING IS WRONG", width, "bold green")])
    heading = _line(f"PROBLEMS {len(found)}", width, "bold")
    whole = [_finding(finding, width, 3) for finding in found]
    short = [_finding(finding, width, 1) for finding in found]

    def draw(count: int) -> list[Text]:
        drawn = whole if sum(map(len, whole)) < count else short
        if sum(map(len, drawn)) < count:
            return [heading, *(line for lines in drawn for line in lines)]
        shown: list[Text] = []
        for done, lines in enumerate(drawn):
            if len(shown) + len(lines) > count - 2:
                # The remedy's line goes before the problem's own.
                if len(shown) + 1 <= count - 2:
                    shown.append(lines[0])
                    done += 1
                break
            shown += lines
        more = _more(len(found) - done, width, "llmgw ctl status")
        return [heading, *shown, *([more] if done < len(found) else [])]

    return _Part("problems", 1 + sum(map(len, whole)), draw)


def _finding(finding: Finding, width: int, lines_max: int) -> list[Text]:
    sign, style = SIGNS[finding.severity]
    where, what = plain(finding.where), plain(finding.what)
    said = what if what.startswith(where) else f"{where}: {what}"
    lines = _wrapped(f"{sign} {finding.severity} {said}", width, lines_max, style)
    if finding.remedy:
        lines += _wrapped(f"→ {plain(finding.remedy)}", width - 2, lines_max, "", indent="  ")
    return lines


def _tabled(table: Table, width: int, too_narrow: list[str]) -> _Part:
    if not table.rows:
        empty = _line(f"{table.title.upper()}  {table.empty}", width, "bold")
        return _Part(table.title, 1, lambda count: [empty])
    shown, widths = _columns(table, width, too_narrow)

    def draw(count: int) -> list[Text]:
        heads = [Cell(table.columns[at].title.upper(), "bold") for at in shown]
        columns = [table.columns[at] for at in shown]
        fits = len(table.rows) < count
        rows = table.rows if fits else table.rows[: max(0, count - 2)]
        lines = [_row(columns, heads, widths, width)]
        lines += [_row(columns, [row[at] for at in shown], widths, width) for row in rows]
        return lines if fits else [*lines, _more(len(table.rows) - len(rows), width, table.more)]

    return _Part(table.title, 1 + len(table.rows), draw)


def _columns(table: Table, width: int, too_narrow: list[str]) -> tuple[list[int], list[int]]:
    """Indexes of the columns that there is room for, and how wide each is; the others' titles go to
    `too_narrow`."""
    natural = [
        max(cell_len(text) for text in (column.title, *(row[at].text for row in table.rows)))
        for at, column in enumerate(table.columns)
    ]
    # A column in which nothing stands tells nothing.
    shown = [
        at
        for at, column in enumerate(table.columns)
        if not column.spare or any(row[at].text not in ("", cells.NONE) for row in table.rows)
    ]
    last = len(table.columns) - 1

    def least() -> int:
        sizes = [
            min(natural[at], NAME_CELLS_MAX)
            if at == 0
            else min(natural[at], LAST_CELLS_MIN)
            if at == last
            else natural[at]
            for at in shown
        ]
        return sum(sizes) + GAP * (len(shown) - 1)

    for at in sorted(shown, key=lambda at: -table.columns[at].spare):
        if least() <= width or not table.columns[at].spare:
            break
        shown.remove(at)
        too_narrow.append(table.columns[at].title)
    widths = [natural[at] for at in shown]
    over = sum(widths) + GAP * (len(shown) - 1) - width
    for index, floor in ((len(shown) - 1, LAST_CELLS_MIN), (0, NAME_CELLS_MIN)):
        if over > 0 and (index == 0 or shown[index] == last):
            cut = min(over, max(0, widths[index] - floor))
            widths[index] -= cut
            over -= cut
    return shown, widths


def _row(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int], width: int) -> Text:
    line = Text(no_wrap=True)
    for at, (column, cell, size) in enumerate(zip(columns, row, widths, strict=True)):
        text = _cut(cell.text, size, middle=at == 0)
        space = " " * (size - cell_len(text))
        line.append(space + text if column.right else text + space, cell.style)
        if at < len(row) - 1:
            line.append(" " * GAP)
    line.rstrip()
    line.truncate(width)
    return line


def _cut(text: str, size: int, *, middle: bool = False) -> str:
    """At most `size` cells of a text. Names differ at both ends, so they lose their middle."""
    if cell_len(text) <= size:
        return text
    if size < 2:
        return set_cell_size(text, size)
    if not middle:
        return f"{set_cell_size(text, size - 1).rstrip()}…"
    tail = (size - 1) // 2
    end = text[-tail:] if tail else ""
    while cell_len(end) > tail:
        end = end[1:]
    return f"{set_cell_size(text, size - 1 - cell_len(end))}…{end}"


def _wrapped(text: str, width: int, lines_max: int, style: str, indent: str = "") -> list[Text]:
    """A text at words over at most `lines_max` lines, cut with an ellipsis when it is longer."""
    size = max(1, width - len(indent))
    lines: list[str] = []
    left = text
    while left and len(lines) < lines_max:
        if cell_len(left) <= size or len(lines) == lines_max - 1:
            lines.append(_cut(left, size))
            break
        head = set_cell_size(left, size)
        at = head.rfind(" ")
        head = head[:at] if at > size // 2 else head
        lines.append(head.rstrip())
        left = left[len(head) :].lstrip()
    return [Text(indent + line, style=style, no_wrap=True) for line in lines]


def _line(text: str, width: int, style: str = "") -> Text:
    return Text(_cut(text, width), style=style, no_wrap=True)


def _more(count: int, width: int, command: str) -> Text:
    return _line(f"and {count} more: {command}", width, "dim")


def _sides(left: str, right: str, width: int) -> Text:
    """One text at each end of a line; the right one gives way."""
    space = width - cell_len(left) - cell_len(right)
    return _line(f"{left}{' ' * space}{right}" if space >= GAP and right else left, width)


def _in_ascii(line: Text) -> Text:
    """For terminals that have no other signs. Each takes one column, as the sign did."""
    plainer = line.copy()
    text = line.plain.translate(_PLAIN_SIGNS)
    plainer.plain = "".join(char if char.isascii() else "?" * cell_len(char) for char in text)
    return plainer
