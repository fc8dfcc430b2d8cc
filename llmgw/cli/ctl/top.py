"""`llmgw ctl top`: the fleet's page in a terminal, problems first, drawn anew as it changes."""

from __future__ import annotations

from typing import Annotated

import typer

from llmgw.cli.ctl.client import shaped
from llmgw.cli.ctl.options import Ctl, command
from llmgw.cli.output import print_json

app = typer.Typer()

ANSWER_S_MAX = 10.0
"""A server that takes longer for one answer counts as away, and is asked again."""


@command(app, "top")
def top(
    ctl: Ctl,
    interval: Annotated[
        float,
        typer.Option("--interval", "-i", min=0.2, max=3600, metavar="SECONDS", help="How often to ask again."),
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame and end; so it does where its output is no terminal.")
    ] = False,
) -> None:
    """Watch the fleet: what is wrong, models with their rates, nodes with their GPUs, replicas, routers.

    q or Ctrl-C ends it, space asks at once.
    """
    from rich.console import Console

    from llmgw.cli.ctl.top_facts import Facts, ask
    from llmgw.cli.ctl.top_frame import frame

    console = Console(highlight=False)
    with ctl.connect(patience_s=ANSWER_S_MAX) as api:
        if ctl.as_json:
            print_json(ask(api))
        elif once or not console.is_terminal or console.is_dumb_terminal:
            facts = shaped(ask(api), Facts)
            # Into a pipe or a file goes all of it.
            height = max(1, console.height - 1) if console.is_terminal else None
            for line in frame(
                facts, api.target.url, console.width, height, ascii_only=console.options.ascii_only
            ):
                console.print(line, no_wrap=True, crop=True)
        else:
            from llmgw.cli.ctl.top_screen import watch

            watch(lambda: shaped(ask(api), Facts), api.target.url, interval, console)
