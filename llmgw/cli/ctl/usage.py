"""`llmgw ctl usage`: what keys and models took."""

from __future__ import annotations

import csv
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import shaped
from llmgw.cli.ctl.options import PANEL, Ctl, command
from llmgw.cli.ctl.since import since_time
from llmgw.cli.output import Cell, Column, print_table

if TYPE_CHECKING:
    from llmgw.messages.usage_views import UsageEntry, UsageView

app = typer.Typer()

COUNTS = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens", "estimated")


class UsageOutput(StrEnum):
    """The forms of `-o` here."""

    table = "table"
    json = "json"
    csv = "csv"


OUTPUT = Annotated[
    UsageOutput | None,
    typer.Option(
        "--output",
        "-o",
        help="A table for people, the API's own JSON, or CSV for spreadsheets.",
        rich_help_panel=PANEL,
        show_default="table",
    ),
]


@command(app, "usage", output=OUTPUT)
def usage(
    ctl: Ctl,
    by: Annotated[
        str,
        typer.Option("--by", metavar="WORDS", help="What to tell apart: day or hour, key, model; with commas."),
    ] = "model",
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="How far back: 24h, 7d; or a date such as 2026-11-01.")
    ] = "7d",
    until: Annotated[
        str | None, typer.Option("--until", metavar="DATE", help="Only before this date or time (UTC).")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="ID", help="Only this key's.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="Only this model's.")] = None,
) -> None:
    """Show requests and tokens by model, key, day or hour (UTC)."""
    from llmgw.messages.usage_views import UsageView

    start = since_time(since, time.time())
    with ctl.connect() as api:
        asked = {"from": start, "to": until, "by": by, "key": key, "model": model}
        value = api.get("usage", **asked)
        if ctl.as_csv:
            _print_csv(shaped(value, UsageView))
        else:
            ctl.show(value, lambda value: _print_table(shaped(value, UsageView)))


def _print_table(view: UsageView) -> None:
    rows: list[list[Cell]] = [[*_named(entry, view.by), *_numbers(entry)] for entry in view.entries]
    if len(rows) > 1 and view.by:
        rows.append(["total", *[""] * (len(_heads(view.by)) - 1), *_numbers(view.total)])
    columns: list[str | Column] = [*_heads(view.by)]
    columns += [Column(title, right=True) for title in ("requests", "errors", "prompt", "cached", "completion")]
    columns.append(Column("estimated", right=True, spare=1))
    print_table(columns, rows, empty="nothing was used in that time")


def _print_csv(view: UsageView) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*(word for word in view.by), *COUNTS])
    for entry in view.entries:
        writer.writerow([*_named(entry, view.by, none=""), *_numbers(entry)])


def _heads(by: list[str]) -> list[str]:
    return [f"{word} (UTC)" if word in ("day", "hour") else word for word in by]


def _named(entry: UsageEntry, by: list[str], none: str = cells.NONE) -> list[str]:
    named = []
    for word in by:
        if word in ("day", "hour"):
            form = "%Y-%m-%d" if word == "day" else "%Y-%m-%d %H:00"
            named.append(time.strftime(form, time.gmtime(entry.at or 0)))
        else:
            named.append((entry.key if word == "key" else entry.model) or none)
    return named


def _numbers(entry: UsageEntry) -> list[int]:
    return [getattr(entry, name) for name in COUNTS]
