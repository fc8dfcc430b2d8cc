"""The `llmgw` command: a table of its commands, each imported only when it is called.

`llmgw --help` must answer at once, so this file imports nothing but Typer.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from llmgw import __version__
from llmgw.cli.errors import ending
from llmgw.cli.standard_input import open_standard_streams
from llmgw.config.errors import SentenceError


@dataclass(frozen=True)
class LazyCommand:
    """Where a command lives: a function, or a Typer app with commands of its own; and its line of help."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "server": LazyCommand("llmgw.cli.server", "app", "Run the control plane and the gateway."),
    "agent": LazyCommand("llmgw.cli.agent", "agent", "Run a GPU node's agent."),
    "ctl": LazyCommand("llmgw.cli.ctl.main", "app", "Ask and steer a server: nodes, replicas, certificates, …"),
    "doctor": LazyCommand("llmgw.cli.doctor", "doctor", "Check this node: what is wrong, where, what to type."),
    "provision-node": LazyCommand(
        "llmgw.cli.provision", "provision_node", "On a Proxmox host: make a node's VM, up to its ssh."
    ),
    "onboard-node": LazyCommand(
        "llmgw.cli.onboard", "onboard_node", "Make a machine a node of the fleet, over ssh."
    ),
    "inspect": LazyCommand("llmgw.cli.inspect", "app", "Read saved output: nvidia-smi, ibnetdiscover, sysfs, …"),
    "router": LazyCommand("llmgw.cli.router", "router", "Run a router (the server starts its own)."),
    "demo": LazyCommand("llmgw.cli.demo", "demo", "A fleet of four nodes on two fabrics, on this machine."),
    "sim": LazyCommand("llmgw.cli.sim", "app", "Simulated hardware and the simulated engine."),
    "version": LazyCommand("llmgw.cli.app", "version", "Print the version."),
}


class LazyGroup(typer.core.TyperGroup):
    """The top level. It lists its commands from the table and imports the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        try:
            return _imported(cmd_name, lazy)
        except SentenceError:
            if ctx.resilient_parsing:  # a shell that completes a word wants no sentences
                return None
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    invoke_without_command=True,
    rich_markup_mode=None,  # Rich would more than double the time to the first word
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _top(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Serve language models on machines that you own, without Kubernetes."""
    if show_version:
        version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def version() -> None:
    """Print the version, and of a build the commit that it was made from."""
    commit = resources.files("llmgw").joinpath("_commit")
    made_from = f" ({commit.read_text(encoding='utf-8').strip()})" if commit.is_file() else ""
    typer.echo(f"llmgw {__version__}{made_from}")


def run(command: str | None = None) -> None:
    """Run the command line on `sys.argv` and exit: 0, 1 for a failure, 2 for a wrong command line.

    `command` is put before the arguments, for programs that are one command under a name of its own.
    """
    if command is not None:
        sys.argv[1:1] = [command]
    open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal or locale that lacks a character gets a question mark, not a failure.
        sys.stdout.reconfigure(errors="replace")
    raise SystemExit(ending(_run))


def _run() -> None:
    command = typer.main.get_command(app)
    if "_LLMGW_COMPLETE" in os.environ:
        command.main(prog_name="llmgw")
        return
    _refuse_a_named_shell(sys.argv[1:])
    # Not command.main(): it takes every EPIPE for a closed stdout, and a server has other pipes.
    with command.make_context("llmgw", sys.argv[1:]) as context:
        command.invoke(context)


def _refuse_a_named_shell(words: list[str]) -> None:
    """Typer takes the shell that it runs in, and would leave another's name unread."""
    if len(words) > 1 and words[0] in ("--install-completion", "--show-completion"):
        raise typer.BadParameter(
            f"{words[0]} takes no {words[1]!r}: it is for the shell that it is typed in; type it there, alone"
        )


def _imported(name: str, lazy: LazyCommand) -> Any:
    try:
        target = getattr(importlib.import_module(lazy.module), lazy.attribute)
    except ModuleNotFoundError as error:
        missing = error.name or "?"
        if missing.partition(".")[0] == "llmgw":
            raise SentenceError(f"this installation has no `llmgw {name}` ({missing} is missing)") from error
        raise SentenceError(
            f"`llmgw {name}` needs the Python package {missing}, which is not installed; install llmgw again "
            "together with its dependencies, for example with pip install --force-reinstall llmgw"
        ) from error
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False)
        target.command(name)(function)
    command = typer.main.get_command(target)
    command.name = name
    _without_rich(command)
    return command


def _without_rich(command: Any) -> None:
    """Plain help everywhere: the same look at every level, and quick."""
    command.rich_markup_mode = None
    for below in getattr(command, "commands", {}).values():
        _without_rich(below)
