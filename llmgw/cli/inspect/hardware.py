"""`llmgw inspect gpus|topo|ports`: what the agent's readers make of saved nvidia-smi output and a sysfs tree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.inspect.saved import FILE, end, read_saved, show
from llmgw.cli.output import Cell, Column, Output, OutputOption, print_table

if TYPE_CHECKING:
    from llmgw.hardware.inspecting import GpuReport, PortReport, TopologyReport

FOLDER = Annotated[Path, typer.Argument(metavar="DIR", help="A folder like /sys/class/infiniband.")]


def gpus(file: FILE, output: OutputOption = Output.table) -> None:
    """GPUs in saved output of nvidia-smi: --query-gpu=… --format=csv, -L, or the table."""
    from llmgw.hardware.inspecting import SAVED_BYTES_MAX, inspect_gpus

    report = inspect_gpus(read_saved(file, SAVED_BYTES_MAX, "nvidia-smi"))
    show(output, report, lambda: _print_gpus(report))
    end(read=bool(report.gpus) or _tells_gpus(report))


def topo(file: FILE, output: OutputOption = Output.table) -> None:
    """NVLinks and nearest adapters in saved output of nvidia-smi topo -m."""
    from llmgw.hardware.inspecting import SAVED_BYTES_MAX, inspect_topology

    report = inspect_topology(read_saved(file, SAVED_BYTES_MAX, "nvidia-smi"))
    show(output, report, lambda: _print_topology(report))
    end(read=report.gpus > 0)


def ports(directory: FOLDER, output: OutputOption = Output.table) -> None:
    """InfiniBand and RoCE ports below a folder like /sys/class/infiniband."""
    from llmgw.hardware.inspecting import inspect_ports

    report = inspect_ports(directory)
    show(output, report, lambda: _print_ports(report))
    end(read=bool(report.ports))


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
