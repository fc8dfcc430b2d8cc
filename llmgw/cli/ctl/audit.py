"""`llmgw ctl audit`: who asked for what."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import shaped
from llmgw.cli.ctl.options import Ctl, command
from llmgw.cli.ctl.since import since_time
from llmgw.cli.output import Column, print_table

if TYPE_CHECKING:
    from llmgw.messages.audit_views import AuditEntry

app = typer.Typer()


@command(app, "audit")
def audit(
    ctl: Ctl,
    by: Annotated[
        str | None, typer.Option("--by", metavar="TOKEN", help="Only what this token asked for, by its name.")
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option("--subject", metavar="NAME", help="A node, a replica, MODEL/PROFILE, a key, a token, …"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="How far back: 24h, 7d; or a date such as 2026-11-01."),
    ] = None,
    before: Annotated[
        int | None, typer.Option("--before", metavar="ID", min=1, help="Only what is older than this entry.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many entries.")] = 100,
) -> None:
    """Show who asked for which change, from where, and how it ended, newest first."""
    from llmgw.messages.audit_views import AuditEntry

    start = None if since is None else since_time(since, time.time())
    with ctl.connect() as api:
        asked = {"by": by, "subject": subject, "from": start, "before": before, "limit": limit}
        value = api.get("audit", **asked)
        ctl.show(value, lambda value: _print_audit(shaped(value, list[AuditEntry])))


def _print_audit(entries: list[AuditEntry]) -> None:
    rows = [
        [
            str(entry.id),
            cells.local_time(entry.at),
            cells.text(entry.by),
            cells.text(entry.address),
            cells.text(f"{entry.method} {entry.route}".strip()),
            cells.text(entry.subject),
            cells.text(entry.summary),
            str(entry.status) if entry.status else cells.NONE,
            cells.text(_message(entry)),
        ]
        for entry in entries
    ]
    print_table(
        [
            Column("id", spare=4),
            f"at ({cells.time_zone()})",
            "by",
            Column("from", spare=2),
            Column("asked", spare=1),
            "subject",
            Column("wish", spare=3),
            "status",
            "answer",
        ],
        rows,
        empty="nothing yet",
    )


def _message(entry: AuditEntry) -> str:
    if entry.count == 1 or entry.last_at is None:
        return entry.message
    return f"{entry.message}, {entry.count} times until {cells.local_time(entry.last_at)}"
