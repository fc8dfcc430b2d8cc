"""What the commands of `llmgw inspect` share: reading a saved file or a pipe, showing a report, exit codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Protocol

import typer

from llmgw.cli.output import Output, plain, print_json
from llmgw.cli.standard_input import read_standard_input
from llmgw.config.errors import SentenceError

EXIT_UNREAD = 1
FILE = Annotated[str, typer.Argument(metavar="FILE", help="A saved file; - reads standard input.")]


class Report(Protocol):
    """What was read, with sentences about what is wrong."""

    @property
    def problems(self) -> list[str]: ...


def read_saved(file: str, bytes_max: int, tool: str) -> str:
    """The text of a saved file, or of standard input for `-`. Raises SentenceError when there is none."""
    from llmgw.hardware.inspecting import decode_saved

    try:
        if file == "-":
            data = read_standard_input(bytes_max)
        else:
            with open(file, "rb") as saved:
                data = saved.read(bytes_max + 1)
    except OSError as error:
        raise SentenceError(
            f"{file} cannot be read: {error.strerror}; name a saved file, or - for a pipe"
        ) from None
    if len(data) > bytes_max:
        what = "standard input" if file == "-" else file
        raise SentenceError(
            f"{what} is larger than {bytes_max // 1024**2} MiB, which no output of {tool} is; name another file"
        )
    return decode_saved(data)


def show(output: Output, report: Report, table: Callable[[], None]) -> None:
    """Print a report for programs, or as a table with its problems below."""
    if output is Output.json:
        print_json(report)
    else:
        table()
        for problem in report.problems:
            print(f"PROBLEM: {plain(problem)}")


def end(*, read: bool) -> None:
    """End with 1 when nothing could be read."""
    if not read:
        raise typer.Exit(EXIT_UNREAD)
