"""`llmgw doctor`: check this node without a server, print what was found, and exit by the worst of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.agent import DEFAULT_PATHS
from llmgw.cli.output import Output, OutputOption, print_json

if TYPE_CHECKING:
    from llmgw.config.agent import AgentConfig
    from llmgw.doctor.examine import Examination

EXIT_WARNINGS = 1
EXIT_ERRORS = 2


def doctor(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Default: ./agent.yaml, else /etc/llmgw/agent.yaml."),
    ] = None,
    nvidia_smi: Annotated[
        str | None,
        typer.Option("--nvidia-smi", metavar="PROG", help="Ask this program about GPUs, not what is configured."),
    ] = None,
    ib_root: Annotated[
        Path | None,
        typer.Option("--ib-root", metavar="DIR", help="Look for adapters here, not where is configured."),
    ] = None,
    output: OutputOption = Output.table,
) -> None:
    """Check this node: configuration, certificate, GPUs, fabrics, engines, ports, disk, server, clock.

    Changes nothing and needs no running agent; run it as the agent's user. Without any agent.yaml, --nvidia-smi
    and --ib-root check the hardware alone. Exit 0: nothing found, 1: warnings, 2: errors.
    """
    from llmgw.config.load import first_there, load_agent_config
    from llmgw.doctor.checks import CHECKS
    from llmgw.doctor.examine import examine, examine_hardware

    path = config or first_there(DEFAULT_PATHS)
    discovery = {"nvidia_smi": nvidia_smi, "ib_root": str(ib_root.absolute()) if ib_root is not None else None}
    named = {key: value for key, value in discovery.items() if value is not None}

    def load() -> AgentConfig:
        loaded = load_agent_config(path, os.environ)
        return loaded.model_copy(update={"discovery": loaded.discovery.model_copy(update=named)})

    if path is None and named and not any(name.startswith("LLMGW_AGENT__") for name in os.environ):
        found = examine_hardware(named)
    else:
        found = examine(load, CHECKS)
    if output is Output.json:
        print_json(found)
    else:
        _print(found)
    code = {"error": EXIT_ERRORS, "warning": EXIT_WARNINGS}.get(found.worst or "", 0)
    if code:
        raise typer.Exit(code)


def _print(found: Examination) -> None:
    from llmgw.cli.ctl.cells import print_findings

    print(f"checked: {', '.join(found.checks)}")
    if not found.findings:
        print("nothing is wrong")
        return
    for severity, heading in (("error", "errors"), ("warning", "warnings"), ("info", "worth knowing")):
        of_it = [finding for finding in found.findings if finding.severity == severity]
        if of_it:
            print(f"\n{heading} ({len(of_it)}):")
            print_findings(of_it)
