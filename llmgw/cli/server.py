"""`llmgw server`: run the control plane; the group of what is done to a server as a whole.

Commands of the group are modules of their own, added at the end of this one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.server_backup import backup
from llmgw.cli.server_install import install
from llmgw.cli.server_restore import restore

DEFAULT_PATHS = (Path("server.yaml"), Path("/etc/llmgw/server.yaml"))

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def server(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Default: ./server.yaml, else /etc/llmgw/server.yaml, else built-in defaults.",
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether the configuration is good.")] = False,
) -> None:
    """Run the control plane and the gateway; a command below does something else to a server.

    Keys can be overridden from the environment: LLMGW_SERVER__LISTEN=127.0.0.1:9000.
    """
    if context.invoked_subcommand is not None:
        context.obj = config
        return
    from llmgw.cli.logs import set_up_logs
    from llmgw.cli.unit_exit import reading_configuration
    from llmgw.config.load import load_server_config

    path = config or default_path()
    with reading_configuration(os.environ):
        loaded = load_server_config(path, os.environ)
    if check:
        typer.echo(f"{path or 'the built-in configuration'}: good")
        return
    set_up_logs(os.environ)

    from llmgw.server.main import run_server

    run_server(loaded, path)


def default_path() -> Path | None:
    """The configuration that a server has which was told none."""
    from llmgw.config.load import first_there

    return first_there(DEFAULT_PATHS)


app.command("install")(install)
app.command("backup")(backup)
app.command("restore")(restore)
