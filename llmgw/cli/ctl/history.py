"""`llmgw ctl history`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import shaped
from llmgw.cli.ctl.options import Ctl, command
from llmgw.cli.output import Column, print_table

if TYPE_CHECKING:
    from llmgw.messages.admin import HistoryEntry

app = typer.Typer()


@command(app, "history")
def history(
    ctl: Ctl,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="NAME", help="A replica, a node, or MODEL/PROFILE.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="replica, node, model, fabric, catalog, operator or server."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="Only this model's.")] = None,
    before: Annotated[
        int | None, typer.Option("--before", metavar="ID", min=1, help="Only what is older than this entry.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many entries.")] = 100,
) -> None:
    """Show what happened, newest first."""
    from llmgw.messages.admin import HistoryEntry

    with ctl.connect() as api:
        value = api.get("history", subject=subject, kind=kind, model=model, before=before, limit=limit)
        ctl.show(value, lambda value: _print_history(shaped(value, list[HistoryEntry])))


def _print_history(entries: list[HistoryEntry]) -> None:
    rows = [
        [
            str(entry.id),
            cells.local_time(entry.at),
            entry.kind,
            cells.text(entry.subject),
            cells.text(entry.event),
            cells.listed(entry.nodes),
            cells.text(entry.reason),
        ]
        for entry in entries
    ]
    print_table(
        [
            "id",
            f"at ({cells.time_zone()})",
            Column("kind", spare=2),
            "subject",
            "event",
            Column("nodes", spare=1),
            "reason",
        ],
        rows,
        empty="nothing yet",
    )
