"""`llmgw inspect`: what the readers of this package make of saved output, on any machine, without a server."""

from __future__ import annotations

import typer

from llmgw.cli.inspect.fabric import bandwidth, fabric, managers
from llmgw.cli.inspect.hardware import gpus, ports, topo

app = typer.Typer(
    no_args_is_help=True,
    help="Read saved output of nvidia-smi, ibnetdiscover, saquery and perftest, or a sysfs tree, as llmgw does. "
    "Exit 0: read, whatever it says; 1: nothing in it could be read.",
)
for command in (gpus, topo, ports, fabric, managers, bandwidth):
    app.command()(command)
