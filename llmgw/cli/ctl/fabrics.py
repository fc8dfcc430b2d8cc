"""`llmgw ctl fabrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import shaped
from llmgw.cli.ctl.options import Ctl, command
from llmgw.cli.output import print_table

if TYPE_CHECKING:
    from llmgw.messages.admin import FabricView

app = typer.Typer()


@command(app, "fabrics")
def fabrics(ctl: Ctl) -> None:
    """Show the fabrics: on which nodes they are usable, and why not on others."""
    from llmgw.messages.admin import FabricView

    with ctl.connect() as api:
        ctl.show(api.get("fabrics"), lambda value: _print_fabrics(shaped(value, list[FabricView])))


def _print_fabrics(views: list[FabricView]) -> None:
    rows = [
        [
            view.name,
            cells.listed(view.nodes),
            f"{view.gpus_free} of {view.gpus} free",
            cells.rate(view.rate_gbps),
            str(len(view.replicas)),
            "; ".join(f"{node}: {cells.text(reason)}" for node, reason in view.unusable.items()),
        ]
        for view in views
    ]
    print_table(
        ["fabric", "usable on", "gpus", "rate", "replicas", "not usable on"],
        rows,
        empty="no node declares a fabric",
    )
