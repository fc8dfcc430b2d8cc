"""`llmgw inspect`: what the agent's readers make of saved output of nvidia-smi, and of a sysfs tree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.output import Cell, Column, Output, OutputOption, print_json, print_table
from llmgw.cli.standard_input import read_standard_input
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.hardware.inspecting import GpuReport, PortReport, TopologyReport

app = typer.Typer(
    no_args_is_help=True,
    help="Read saved nvidia-smi output or a sysfs tree as agents do. Exit 0: read, whatever it says; 1: nothing "
    "in it could be read.",
)

EXIT_UNREAD = 1
FILE = Annotated[str, typer.Argument(metavar="FILE", help="A saved file; - reads standard input.")]
FOLDER = Annotated[Path, typer.Argument(metavar="DIR", help="A folder like /sys/class/infiniband.")]


@app.command()
def gpus(file: FILE, output: OutputOption = Output.table) -> None:
    """GPUs in saved output of nvidia-smi: --query-gpu=… --format=csv, -L, or the table."""
    from llmgw.hardware.inspecting import inspect_gpus

    report = inspect_gpus(_read(file))
    _show(output, report, lambda: _print_gpus(report))
    _end(read=bool(report.gpus) or _tells_gpus(report))


@app.command()
def topo(file: FILE, output: OutputOption = Output.table) -> None:
    """NVLinks and nearest adapters in saved output of nvidia-smi topo -m."""
    from llmgw.hardware.inspecting import inspect_topology

    report = inspect_topology(_read(file))
    _show(output, report, lambda: _print_topology(report))
    _end(read=report.gpus > 0)


@app.command()
def ports(directory: FOLDER, output: OutputOption = Output.table) -> None:
    """InfiniBand and RoCE ports below a folder like /sys/class/infiniband."""
    from llmgw.hardware.inspecting import inspect_ports

    report = inspect_ports(directory)
    _show(output, report, lambda: _print_ports(report))
    _end(read=bool(report.ports))


def _read(file: str) -> str:
    from llmgw.hardware.inspecting import SAVED_BYTES_MAX, decode_saved

    try:
        if file == "-":
            data = read_standard_input(SAVED_BYTES_MAX)
        else:
            with open(file, "rb") as saved:
                data = saved.read(SAVED_BYTES_MAX + 1)
    except OSError as error:
        raise SentenceError(
            f"{file} cannot be read: {error.strerror}; name a saved file, or - for a pipe"
        ) from None
    if len(data) > SAVED_BYTES_MAX:
        what = "standard input" if file == "-" else file
        raise SentenceError(
            f"{what} is larger than {SAVED_BYTES_MAX // 1024**2} MiB, which no output of nvidia-smi is; "
            "name another file"
        )
    return decode_saved(data)


def _show(output: Output, report: Any, table: Any) -> None:
    if output is Output.json:
        print_json(report)
    else:
        table()
        for problem in report.problems:
            print(f"PROBLEM: {problem}")


def _end(*, read: bool) -> None:
    if not read:
        raise typer.Exit(EXIT_UNREAD)


def _tells_gpus(report: GpuReport) -> bool:
    """A text that says that there is no GPU, or which one is lost, was read too."""
    unread = ("could not be read", "nothing to read")
    return any(not any(word in problem for word in unread) for problem in report.problems)


def _print_gpus(report: GpuReport) -> None:
    columns: Sequence[str | Column] = [
        Column("gpu", right=True),
        "name",
        Column("used", right=True),
        Column("memory", right=True),
        "mig",
        Column("state", state=True),
        "uuid",
        "reason",
    ]
    rows: list[list[Cell]] = [
        [
            gpu.index,
            gpu.name,
            _mib(gpu.memory_used_mib),
            _mib(gpu.memory_total_mib),
            None if gpu.mig is None else "yes" if gpu.mig else "no",
            "usable" if gpu.usable else "failed",
            gpu.uuid,
            gpu.reason,
        ]
        for gpu in report.gpus
    ]
    print_table(columns, rows, empty="no GPU")


def _print_topology(report: TopologyReport) -> None:
    rows: list[list[Cell]] = [
        [
            gpu,
            _listed([str(peer) for peer in report.nvlink.get(gpu, [])], gpu in report.nvlink),
            _listed(report.nearest_nics.get(gpu, []), gpu in report.nearest_nics),
        ]
        for gpu in map(str, sorted({int(gpu) for gpu in (*report.nvlink, *report.nearest_nics)}))
    ]
    print_table([Column("gpu", right=True), "nvlink with", "nearest adapters"], rows, empty="no GPU")


def _print_ports(report: PortReport) -> None:
    columns: Sequence[str | Column] = [
        "port",
        "link layer",
        Column("state", state=True),
        "link",
        Column("rate", right=True),
        Column("usable", state=True),
        "reason",
    ]
    rows: list[list[Cell]] = [
        [
            f"{port.adapter}:{port.port}",
            port.link_layer,
            port.state,
            port.phys_state,
            None if port.rate_gbps is None else f"{port.rate_gbps:g} Gb/s",
            "usable" if port.usable else "failed",
            port.reason,
        ]
        for port in report.ports
    ]
    print_table(columns, rows, empty="no port")


def _mib(count: int | None) -> str | None:
    return None if count is None else f"{count} MiB"


def _listed(names: list[str], known: bool) -> str:
    return "unknown" if not known else ", ".join(names) or "none"
