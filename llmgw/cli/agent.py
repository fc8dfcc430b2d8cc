"""`llmgw agent`: read the configuration, set up logs, run a node's agent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_PATHS = (Path("agent.yaml"), Path("/etc/llmgw/agent.yaml"))


def agent(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Default: ./agent.yaml, else /etc/llmgw/agent.yaml."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether the configuration is good.")] = False,
) -> None:
    """Run a GPU node's agent.

    Keys can be overridden from the environment: LLMGW_AGENT__SERVER=https://gateway:8443.
    """
    from llmgw.cli.logs import set_up_logs
    from llmgw.cli.unit_exit import reading_configuration
    from llmgw.config.load import first_there, load_agent_config

    path = config or first_there(DEFAULT_PATHS)
    with reading_configuration(os.environ):
        loaded = load_agent_config(path, os.environ)
    if check:
        typer.echo(f"{path or 'the environment'}: good")
        return
    set_up_logs(os.environ)

    from llmgw.agent.main import run_agent
    from llmgw.doctor.check import Node
    from llmgw.doctor.checks import BESIDE_AGENT
    from llmgw.doctor.examine import run

    named = [] if path is None else ["--config", str(path.absolute())]
    run_agent(loaded, lambda: run(BESIDE_AGENT, Node(loaded)), check=["agent", "--check", *named])
