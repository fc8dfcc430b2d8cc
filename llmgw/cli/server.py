"""`llmgw server`: read the configuration, set up logs, run the control plane."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_PATHS = (Path("server.yaml"), Path("/etc/llmgw/server.yaml"))


def server(
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
    """Run the control plane and the gateway.

    Keys can be overridden from the environment: LLMGW_SERVER__LISTEN=127.0.0.1:9000.
    """
    from llmgw.cli.logs import set_up_logs
    from llmgw.config.load import load_server_config

    path = config or next((path for path in DEFAULT_PATHS if path.exists()), None)
    loaded = load_server_config(path, os.environ)
    if check:
        typer.echo(f"{path or 'the built-in configuration'}: good")
        return
    set_up_logs(os.environ)

    from llmgw.server.main import run_server

    run_server(loaded, path)
