"""`llmgw ctl status`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import shaped
from llmgw.cli.ctl.options import Ctl, command
from llmgw.cli.output import format_age

if TYPE_CHECKING:
    from llmgw.cli.ctl.find import Target
    from llmgw.messages.admin import ServerView

app = typer.Typer()


@command(app, "status")
def status(ctl: Ctl) -> None:
    """Show the server itself: what it is doing, its routers, and what needs a person."""
    from llmgw.messages.admin import ServerView

    with ctl.connect() as api:
        ctl.show(api.get("server"), lambda value: _print_server(shaped(value, ServerView), api.target))


def _print_server(view: ServerView, target: Target) -> None:
    up_s = max(0.0, time.time() - view.started_at)
    settling = "yes: waiting for the known nodes, nothing new is placed yet" if view.settling else "no"
    for name, value in (
        ("server", f"llmgw {cells.text(view.version)} at {target.url}"),
        ("up for", f"{format_age(up_s)}, since {cells.local_time(view.started_at)} {cells.time_zone()}"),
        ("settling", settling),
        ("model API", cells.text(view.listen)),
        ("API keys", f"{view.api_keys}, {'needed' if view.api_keys_required else 'nobody is asked for one'}"),
        ("routers", cells.listed(view.routers)),
        ("problems", str(len(view.problems)) if view.problems else "none known"),
    ):
        print(f"{name.ljust(9)}  {value}")
    cells.print_findings(view.problems)
