"""`llmgw ctl fabrics` and `llmgw ctl fabric …`: managers, maps, what changed, and how it should be cabled."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import AdminClient, segment, shaped
from llmgw.cli.ctl.completion import fabric_names
from llmgw.cli.ctl.options import Ctl, command, group_options, note
from llmgw.cli.output import Column, format_age, plain, print_table
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.messages.admin_fabrics import FabricChanges, FabricView, ManagerView

app = typer.Typer()
fabric_app = typer.Typer(no_args_is_help=True, help="One fabric: how it is cabled, and what has changed.")
fabric_app.callback()(group_options)

NAME = Annotated[
    str, typer.Argument(metavar="NAME", help="A fabric's name, or its id.", autocompletion=fabric_names)
]


@command(app, "fabrics")
def fabrics(ctl: Ctl) -> None:
    """Show the fabrics: nodes, subnet managers, the newest map, and what is wrong."""
    from llmgw.messages.admin_fabrics import FabricView

    with ctl.connect() as api:
        ctl.show(api.get("fabrics"), lambda value: _print_fabrics(shaped(value, list[FabricView])))


@command(fabric_app, "changes")
def changes(
    ctl: Ctl,
    name: NAME,
    before: Annotated[
        int | None, typer.Option("--before", metavar="ID", min=1, help="Only what is older than this change.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many.")] = 100,
) -> None:
    """Show what has changed on a fabric, newest first: cabling, managers, and a day of its ports."""
    from llmgw.messages.admin_fabrics import FabricChanges

    with ctl.connect() as api:
        value = api.get(f"fabrics/{segment(name)}/changes", before=before, limit=limit)
        ctl.show(value, lambda value: _print_changes(shaped(value, FabricChanges)))


@command(fabric_app, "accept")
def accept(
    ctl: Ctl, name: NAME, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Accept how a fabric is cabled today: every later difference is a finding."""
    with ctl.connect() as api:
        if not yes:
            _ask(api, name)
        ctl.show_done(api.post(f"fabrics/{segment(name)}/accept"))


@command(fabric_app, "map")
def show_map(ctl: Ctl, name: NAME) -> None:
    """Show the newest map of a fabric, as llmgw inspect fabric shows a saved one."""
    with ctl.connect() as api:
        ctl.show(api.get(f"fabrics/{segment(name)}/map"), _print_map)


def _print_map(value: Any) -> None:
    from llmgw.cli.inspect.fabric import print_fabric
    from llmgw.fabric.report import FabricReport

    report = shaped(value, FabricReport)
    print_fabric(report)
    for problem in report.problems:
        print(f"PROBLEM: {plain(problem)}")


def _ask(api: AdminClient, name: str) -> None:
    """Raises a SentenceError when nobody can be asked, and typer.Abort for a no."""
    from llmgw.fabric.report import FabricReport

    report = shaped(api.get(f"fabrics/{segment(name)}/map"), FabricReport)
    if not sys.stdin.isatty():
        raise SentenceError(
            f"the cabling of {name} would be accepted, and nobody can be asked here; repeat with --yes"
        )
    note(f"{name}: {report.switches} switches, {report.hcas} adapters, {report.links} cables")
    for problem in report.problems:
        note(f"problem: {plain(problem)}")
    typer.confirm("Accept this cabling?", abort=True, err=True)


def _print_fabrics(views: list[FabricView]) -> None:
    times = Counter(view.name for view in views)
    rows = [
        [
            # Of two with one name, commands about one of them take the id.
            f"{view.name} ({view.id or 'not known yet'})" if times[view.name] > 1 else view.name,
            cells.listed(view.nodes),
            f"{view.gpus_free} of {view.gpus} free",
            cells.rate(view.rate_gbps),
            str(len(view.replicas)),
            _master(view),
            ", ".join(_manager(standby) for standby in view.standbys) or _no_standby(view),
            _map(view),
            "; ".join(f"{node}: {cells.text(reason)}" for node, reason in view.unusable.items()),
        ]
        for view in views
    ]
    columns: list[str | Column] = [
        "fabric",
        "usable on",
        "gpus",
        "rate",
        Column("replicas", right=True, spare=3),
        "master",
        Column("standbys", spare=2),
        Column("map", spare=1),
        "not usable on",
    ]
    print_table(columns, rows, empty="no node declares a fabric")
    told: dict[str, list[str]] = {}
    for view in views:
        for problem in view.problems:
            names = told.setdefault(problem, [])
            if view.name not in names:
                names.append(view.name)
    for problem, names in told.items():
        print(f"PROBLEM: {cells.listed(names)}: {plain(problem)}")


def _master(view: FabricView) -> str:
    if view.link_layer == "Ethernet":
        return "none (Ethernet)"
    if view.answer == "none":
        return "none"
    if view.master is None:
        return "unknown"
    known = _manager(view.master)
    if view.answer == "ok":
        return known
    seen = f" {format_age(time.time() - view.answered_at)} ago" if view.answered_at is not None else ""
    return f"unknown, last seen{seen}: {known}"


def _no_standby(view: FabricView) -> str:
    return "none" if view.answer == "ok" else cells.NONE


def _manager(manager: ManagerView) -> str:
    priority = "" if manager.priority is None else f" priority {manager.priority}"
    host = f" ({plain(manager.host)})" if manager.host else ""
    return f"{manager.guid or '?'}{priority}{host}"


def _map(view: FabricView) -> str:
    made = view.map
    if made is None:
        return cells.NONE
    slow = f", {len(made.slow)} slow" if made.slow else ""
    return (
        f"{made.switches} switches, {made.adapters} adapters, {made.cables} cables{slow}, "
        f"{format_age(made.age_s)} old"
    )


def _print_changes(found: FabricChanges) -> None:
    rows = [
        [cells.local_time(change.at), change.area, cells.text(change.kind), cells.text(change.what)]
        for change in found.changes
    ]
    print_table(
        [f"at ({cells.time_zone()})", "area", "changed", "what"],
        rows,
        empty="nothing has changed that is known of",
    )
    if found.accepted_at is not None:
        when = f"{cells.local_time(found.accepted_at)} by {cells.text(found.accepted_by)}"
        print(f"\nthe cabling was accepted {when}; differences now: {len(found.differences)}")
        for difference in found.differences:
            print(f"DIFFERENCE: {plain(difference.what)}")
