"""`llmgw demo`: a fleet of four nodes on two fabrics, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    scenario: Annotated[
        str | None,
        typer.Option(
            help="Run unattended, exit 0 only if all of it held: node-loss, engine-crash, agent-restart, "
            "server-restart, partition, drain, rolling-update, core-dead, gateway-chaos or problems."
        ),
    ] = None,
    gguf: Annotated[
        Path | None, typer.Option(help="Also serve this GGUF file by llama.cpp on one of the nodes.")
    ] = None,
    llama_server: Annotated[
        str | None, typer.Option(help="llama.cpp's server, by name or path. Default: llama-server on PATH.")
    ] = None,
    load_s: Annotated[float, typer.Option(min=0, help="Seconds that a simulated engine loads.")] = 5.0,
    tokens_per_s: Annotated[float, typer.Option(min=0.1, help="Tokens a second of a simulated engine.")] = 40.0,
    folder: Annotated[
        Path | None, typer.Option(help="Make the demo's files here, and keep them. Default: a temporary folder.")
    ] = None,
    keep: Annotated[bool, typer.Option(help="Keep the temporary folder when the demo ends.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write a scenario's facts to this file, as JSON.")] = None,
) -> None:
    """Bring up a fleet of four simulated nodes on two fabrics and serve models through it.

    Needs no files, no root and no GPU. Ctrl-C ends everything.
    """
    import shutil

    from llmgw.sim.demo import run_demo, run_scenario
    from llmgw.sim.demo_files import DemoOptions
    from llmgw.sim.demo_fleet import DemoError

    if gguf is not None:
        if not gguf.is_file():
            raise DemoError(f"{gguf} is not a file; --gguf takes a GGUF file")
        if shutil.which(llama_server or "llama-server") is None:
            missing = llama_server or "llama-server"
            raise DemoError(f"{missing} is not a program here; name llama.cpp's server with --llama-server")
    if folder is not None and folder.exists():
        raise DemoError(f"{folder} exists; name a folder that does not")
    options = DemoOptions(
        load_s=load_s,
        tokens_per_s=tokens_per_s,
        gguf=gguf,
        llama_server=str(Path(shutil.which(llama_server) or llama_server).absolute()) if llama_server else None,
        folder=folder,
        keep=keep,
    )
    raise typer.Exit(run_demo(options) if scenario is None else run_scenario(scenario, options, report))
