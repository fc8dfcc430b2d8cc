"""`llmgw inspect fabric|managers|bandwidth`: saved output of ibnetdiscover, saquery and perftest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.inspect.saved import FILE, end, read_saved, show
from llmgw.cli.output import Cell, Column, Output, OutputOption, plain, print_table
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.fabric.managers import Managers
    from llmgw.fabric.perftest import Bandwidth
    from llmgw.fabric.report import End, FabricReport

FABRIC_BYTES_MAX = 64 * 1024 * 1024
"""A fabric of 10,000 adapters takes 5 MB."""
SMALL_BYTES_MAX = 1024 * 1024

DOT = Annotated[bool, typer.Option("--dot", help="Draw it for Graphviz instead.")]
SVG = Annotated[bool, typer.Option("--svg", help="Draw it as an SVG instead.")]


BEFORE = Annotated[
    str | None, typer.Option("--before", metavar="FILE", help="An earlier map: what has changed since is listed.")
]


def fabric(
    file: FILE, before: BEFORE = None, dot: DOT = False, svg: SVG = False, output: OutputOption = Output.table
) -> None:
    """The InfiniBand fabric in saved output of ibnetdiscover: tiers, slow cables, rails, what is odd or new."""
    from llmgw.fabric.changes import cabling_of, compare
    from llmgw.fabric.report import analyse, report_fabric

    if dot and svg:
        raise typer.BadParameter("--dot and --svg draw the same: name one")
    if before is not None and (dot or svg):
        raise typer.BadParameter("--before lists changes and a drawing shows none: leave one out")
    if before == file == "-":
        raise typer.BadParameter("standard input holds one map: name a file for --before")
    analysis = analyse(read_saved(file, FABRIC_BYTES_MAX, "ibnetdiscover"))
    if dot or svg:
        from llmgw.fabric.dot import draw_dot
        from llmgw.fabric.svg import draw_svg

        sys.stdout.write(draw_dot(analysis) if dot else draw_svg(analysis))
    else:
        report = report_fabric(analysis)
        if before is not None:
            earlier = analyse(read_saved(before, FABRIC_BYTES_MAX, "ibnetdiscover"))
            if not earlier.topology.nodes:
                raise SentenceError(
                    f"there is no map in {before}; name saved output of ibnetdiscover for --before"
                )
            report.changes = compare(cabling_of(earlier.topology), cabling_of(analysis.topology))
        show(output, report, lambda: print_fabric(report))
    end(read=bool(analysis.topology.nodes))


def managers(file: FILE, output: OutputOption = Output.table) -> None:
    """Subnet managers in saved output of saquery SMIR (sminfo and saquery -s are read too)."""
    from llmgw.fabric.managers import read_managers

    found = read_managers(read_saved(file, SMALL_BYTES_MAX, "saquery"))
    show(output, found, lambda: _print_managers(found))
    end(read=found.form != "nothing")


def bandwidth(file: FILE, output: OutputOption = Output.table) -> None:
    """The bandwidth in saved output of ib_write_bw and its sisters, in Gb/s, of the largest message."""
    from llmgw.fabric.perftest import read_bandwidth

    found = read_bandwidth(read_saved(file, SMALL_BYTES_MAX, "perftest"))
    show(output, found, lambda: _print_bandwidth(found))
    end(read=found.read)


def print_fabric(report: FabricReport) -> None:
    """A report as tables; its problems are not among them."""
    tiers = ", ".join(f"{count} {tier}" for tier, count in report.tiers.items() if count) or "no tier"
    rates = ", ".join(f"{count} {rate}" for rate, count in report.rates.items()) or "none"
    rows: list[list[Cell]] = [
        ["switches", f"{report.switches} ({tiers})"],
        ["adapters", f"{report.hcas} on {report.hosts} named hosts, {report.unnamed_hcas} without a name"],
        ["SHARP nodes", report.sharp],
        ["routers", report.routers],
        ["cables", f"{report.links} ({rates})"],
    ]
    if report.rails:
        rows.append(["rails", f"{len(report.rails)}, {_alignment(report)}"])
    print_table(["what", "count"], rows)
    if report.slow:
        print()
        print_table(
            ["slow cable from", "to", "rate", "expected", "why"],
            [[_end(slow.a), _end(slow.b), slow.rate, slow.expected, slow.why] for slow in report.slow],
        )
    if report.disagreeing:
        print()
        print_table(
            ["disagreeing cable from", "to", "why"],
            [[_end(said.a), _end(said.b), said.why] for said in report.disagreeing],
        )
    if report.rail_swaps or report.off_rail:
        print()
        swaps: list[list[Cell]] = [
            [swap.node, " and ".join(swap.adapters), "swapped: each is on the other's leaf"]
            for swap in report.rail_swaps
        ]
        swaps += [
            [off.node, off.adapter, f"on {off.leaf}, a leaf of rail {off.leaf_rail}, not {off.rail}"]
            for off in report.off_rail
        ]
        print_table(["off its rail", "adapters", "how"], swaps)
    if report.changes is not None:
        print()
        print_table(
            ["changed", "what"], [[it.kind, it.what] for it in report.changes], empty="nothing has changed"
        )
    for line in report.unread:
        print(f"UNREAD: {plain(line)}")


def _alignment(report: FabricReport) -> str:
    if not all(rail.aligned for rail in report.rails):
        return "not aligned"
    strays = len(report.off_rail) + 2 * len(report.rail_swaps)
    if strays:
        return f"aligned but for {strays} adapter{'s' if strays > 1 else ''}"
    return "aligned"


def _end(end: End) -> str:
    """`sw-leaf-1[11]`; several switches may have one name, so that the GUID follows."""
    from llmgw.fabric.names import short_name

    name = f"{short_name(end.name)} " if end.name else ""
    return f"{name}{end.guid}[{end.port}]"


def _print_managers(found: Managers) -> None:
    columns: list[str | Column] = [
        "manager",
        Column("lid", right=True),
        Column("priority", right=True),
        Column("state", state=True),
    ]
    rows: list[list[Cell]] = []
    if found.master is not None:
        rows.append([found.master.guid, found.master.lid, found.master.priority, "master"])
    rows += [[standby.guid, standby.lid, standby.priority, "standby"] for standby in found.standbys]
    print_table(columns, rows, empty="unknown" if found.answer == "unknown" else "no subnet manager")


def _print_bandwidth(found: Bandwidth) -> None:
    if found.gbps is None:
        print(f"no result: {plain(found.error or '')}")
        return
    both = ", both directions together" if found.bidirectional else ""
    print(f"{found.gbps:.2f} Gb/s at {found.message_bytes} bytes{both} (printed in {found.unit_read})")
