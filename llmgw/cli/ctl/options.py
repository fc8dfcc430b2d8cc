"""What every `ctl` command shares: how the server is named, and how the answer is printed."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from llmgw.cli.ctl.find import Wanted, find_server
from llmgw.cli.output import Output, print_json

if TYPE_CHECKING:
    from llmgw.cli.ctl.client import AdminClient

_META = "llmgw.ctl.wanted"
PANEL = "Server and output"

SERVER = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="The admin API's address. Default: LLMGW_CTL_SERVER, else the server on this host.",
        rich_help_panel=PANEL,
    ),
]
TOKEN_FILE = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="A file with the admin token. Default: LLMGW_CTL_TOKEN, else that of the server on this host.",
        rich_help_panel=PANEL,
    ),
]
TOKEN = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        help="The admin token itself. Everybody on this host can see it in the process list.",
        rich_help_panel=PANEL,
    ),
]
CA = Annotated[
    str | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="The authority that signed the server's certificate. Default: LLMGW_CTL_CA, else the system's.",
        rich_help_panel=PANEL,
    ),
]
OUTPUT = Annotated[
    Output | None,
    typer.Option(
        "--output",
        "-o",
        help="A table for people, or the API's own JSON.",
        rich_help_panel=PANEL,
        show_default="table",
    ),
]

Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True)
class Ctl:
    """One run of a command: which server was asked for, and whether it prints JSON."""

    wanted: Wanted
    as_json: bool
    as_csv: bool = False

    def connect(self, *, patience_s: float | None = None) -> AdminClient:
        """The server's admin API; `patience_s` as AdminClient takes it. Raises FindError when none, or no token,
        is found.
        """
        from llmgw.cli.ctl.client import AdminClient

        target = find_server(self.wanted, os.environ, Path.cwd(), Path.home())
        return AdminClient(target, patience_s=patience_s)

    def show(self, value: Any, as_table: Callable[[Any], None]) -> None:
        """Print the API's answer as it is, or as a table."""
        if self.as_json:
            print_json(value)
        else:
            as_table(value)

    def show_done(self, value: Any) -> None:
        """Print a `Done`: its sentence, and what could not be done on stderr."""
        from llmgw.cli.ctl.client import shaped
        from llmgw.cli.output import plain
        from llmgw.messages.admin import Done

        if self.as_json:
            print_json(value)
            return
        done = shaped(value, Done)
        print(plain(done.message))
        for warning in done.warnings:
            note(f"warning: {plain(warning)}")


def note(sentence: str) -> None:
    """Say something beside the answer, so that a pipe gets the answer only."""
    print(sentence, file=sys.stderr, flush=True)


def group_options(
    context: typer.Context,
    server: SERVER = None,
    token_file: TOKEN_FILE = None,
    token: TOKEN = None,
    ca: CA = None,
    output: OUTPUT = None,
) -> None:
    """Keep the options that stand before the command; the same ones after it win."""
    context.meta[_META] = (Wanted(server, token, token_file, ca), output)


def command(
    app: typer.Typer, name: str, *, output: Any = OUTPUT, **settings: Any
) -> Callable[[Command], Command]:
    """Register a function whose first parameter is a `Ctl`, with the options that all commands share.

    `output` is the type of its `-o`, where it has more forms than the others.
    """
    output_type = output

    def register(function: Command) -> Command:
        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]
        shared = {"server": SERVER, "token_file": TOKEN_FILE, "token": TOKEN, "ca": CA, "output": output_type}

        def run(context: typer.Context, **given: Any) -> None:
            values = {key: given.pop(key) for key in shared}
            before, output = context.meta.get(_META, (Wanted(), None))
            wanted = Wanted(
                **{field.name: values[field.name] or getattr(before, field.name) for field in fields(Wanted)}
            )
            form = values["output"] or output
            function(Ctl(wanted, form == Output.json, form == "csv"), **given)

        parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
        parameters += [
            parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in own
        ]
        parameters += [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for key, annotation in shared.items()
        ]
        functools.update_wrapper(run, function)
        # Typer reads the signature; without these two lines it would read the wrapped function's.
        del run.__wrapped__  # type: ignore[attr-defined]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, **settings)(run)
        return function

    return register
