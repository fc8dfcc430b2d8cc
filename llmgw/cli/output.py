"""What commands print: tables for people, JSON for programs, and ages, in one place."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer


class Output(StrEnum):
    """The two forms of `-o`."""

    table = "table"
    json = "json"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="table for people, json for programs (stable).")
]
"""The type of a command's `output` parameter; its default is `Output.table`."""

Cell = str | int | float | None


@dataclass(frozen=True)
class Column:
    """A column's heading. `right` aligns numbers; `state` colours words such as ready and lost on a terminal.

    `spare` above 0: a terminal that is too narrow for all columns goes without this one, the highest first.
    """

    title: str
    right: bool = False
    state: bool = False
    spare: int = 0


# What JSON need not escape and a terminal acts on: C1 controls (0x9b begins a command), turns of direction.
_ACTING = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")

FREE_TEXT_MIN = 20
"""Characters that the last column, which wraps at words, is left with before a spare column goes."""


# Colours say the same as the words do, never more.
STATE_STYLES = {
    **dict.fromkeys(("ready", "ok", "active", "idle", "valid", "usable"), "green"),
    **dict.fromkeys(
        ("starting", "draining", "stopping", "adopting", "fetching", "waiting", "unreachable"), "yellow"
    ),
    **dict.fromkeys(("failed", "lost", "revoked", "expired", "error", "down"), "red"),
    **dict.fromkeys(("stopped", "unknown", "cordoned"), "dim"),
}


def print_json(value: Any) -> None:
    """Print a message struct, a list of them, or plain data as indented JSON; keys in the struct's order."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    sys.stdout.write(_ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def print_table(columns: Sequence[str | Column], rows: Iterable[Sequence[Cell]], empty: str = "") -> None:
    """Print a table. Without rows, `empty` (a sentence) instead of a heading above nothing.

    On a terminal Rich draws it; where that is too narrow, spare columns are left out (and named below the table),
    and the last column wraps. Into a pipe or a file it is plain text, columns
    two spaces apart, every cell whole however wide, no colours.
    """
    heads = [Column(column) if isinstance(column, str) else column for column in columns]
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells and empty:
        sys.stdout.write(empty + "\n")
    elif sys.stdout.isatty():
        _print_rich(heads, cells)
    else:
        sys.stdout.write("".join(line + "\n" for line in _plain_lines(heads, cells)))


def plain(text: str) -> str:
    """One line without control characters, so that what a server or a switch says cannot move the cursor."""
    return "".join(char if char.isprintable() else " " for char in text)[:2000]


def format_age(seconds: float | None) -> str:
    """The two largest units of an age: 192 → `3m12s`, 90000 → `1d1h`, 0.4 → `0s`; None → `-`."""
    if seconds is None:
        return "-"
    left = max(0, int(seconds))
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    for at, (unit, size) in enumerate(units):
        count, left = divmod(left, size)
        if count:
            smaller = [f"{left // size}{unit}" for unit, size in units[at + 1 : at + 2] if left // size]
            return "".join([f"{count}{unit}", *smaller])
    return "0s"


def _cell(value: Cell) -> str:
    """A value as text on one line. Control characters (an engine's output may hold any) are shown, not sent."""
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:g}"
    return "".join(char if char.isprintable() else _visible(char) for char in str(value))


def _visible(char: str) -> str:
    return " " if char in "\t\n\r" else ascii(char)[1:-1]


def _width(text: str) -> int:
    """Columns that a text takes on a terminal: East Asian wide characters take two (UAX #11)."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def _plain_lines(heads: list[Column], cells: list[list[str]]) -> Iterable[str]:
    table = [[head.title.upper() for head in heads], *cells]
    widths = [max(_width(row[at]) for row in table) for at in range(len(heads))]
    for row in table:
        padded = []
        for at, text in enumerate(row):
            space = " " * (widths[at] - _width(text))
            padded.append(space + text if heads[at].right else text + space)
        yield "  ".join(padded).rstrip()


def _print_rich(heads: list[Column], cells: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    shown, names_fit = _columns_that_fit(heads, cells, console.width)
    left_out = [head.title for at, head in enumerate(heads) if at not in shown]
    heads, cells = [heads[at] for at in shown], [[row[at] for at in shown] for row in cells]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for at, head in enumerate(heads):
        table.add_column(
            head.title.upper(),
            justify="right" if head.right else "left",
            overflow="fold",
            no_wrap=names_fit and at < len(heads) - 1,
        )
    for row in cells:
        table.add_row(
            *(
                Text(text, style=STATE_STYLES.get(text.split(" ")[0].lower(), "") if head.state else "")
                for head, text in zip(heads, row, strict=True)
            )
        )
    console.print(table)
    if left_out:
        console.print(
            Text(f"(too narrow for: {', '.join(left_out)}; a wider terminal or -o json has all)", "dim")
        )


def _columns_that_fit(heads: list[Column], cells: list[list[str]], width: int) -> tuple[list[int], bool]:
    """The columns to show, and whether all of them but the last have their full width."""
    widths = [
        max(_width(text) for text in (head.title, *(row[at] for row in cells))) for at, head in enumerate(heads)
    ]
    shown = list(range(len(heads)))

    def fits() -> bool:
        *names, last = (widths[at] for at in shown)
        return sum(names) + 2 * len(names) + min(last, FREE_TEXT_MIN) <= width

    for at in sorted(shown, key=lambda at: -heads[at].spare):
        if fits() or not heads[at].spare:
            break
        shown.remove(at)
    return shown, fits()
