"""`llmgw ctl apply`, and `catalog history|show|rollback`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.catalog_text import catalog_yaml, print_plan
from llmgw.cli.ctl.catalog_wait import wait_until_ready
from llmgw.cli.ctl.client import AdminClient, shaped
from llmgw.cli.ctl.options import Ctl, command, note
from llmgw.cli.output import Column, print_json, print_table
from llmgw.cli.standard_input import read_standard_input

if TYPE_CHECKING:
    from llmgw.messages.admin import CatalogPlan, CatalogRevisionView, CatalogView

app = typer.Typer()
catalog_app = typer.Typer(no_args_is_help=True, help="The catalog's revisions: history, show, rollback.")

YES = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]
DRY_RUN = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]
WAIT = Annotated[bool, typer.Option("--wait", help="Return when all that is wanted is ready.")]
NOTE = Annotated[str, typer.Option("--note", metavar="TEXT", help="Why: it stands in the history.")]


@command(app, "apply")
def apply(
    ctl: Ctl,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="YAML with models:, or a whole server.yaml. - is standard input."),
    ],
    yes: YES = False,
    dry_run: DRY_RUN = False,
    wait: WAIT = False,
    text: NOTE = "",
) -> None:
    """Make a file's models the catalog: print the plan, ask, and apply it as the next revision."""
    from llmgw.config.load import load_catalog_file
    from llmgw.config.yaml_lines import BYTES_MAX

    found = (
        load_catalog_file(Path("standard input"), read_standard_input(BYTES_MAX))
        if file == "-"
        else load_catalog_file(Path(file))
    )
    if found.ignored:
        note(f"{file}: only models: is read of it, not {cells.listed(list(found.ignored))}")
    models = found.catalog.model_dump(mode="json")["models"]
    with ctl.connect() as api:
        _carry_through(ctl, api, {"models": models}, yes=yes, dry_run=dry_run, wait=wait, text=text)


@command(catalog_app, "history")
def history(
    ctl: Ctl,
    before: Annotated[
        int | None, typer.Option("--before", metavar="N", min=1, help="Only what is older than this revision.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many revisions.")] = 100,
) -> None:
    """Show the catalog's revisions, newest first: when, by whom, and why."""
    from llmgw.messages.admin import CatalogRevisionView

    with ctl.connect() as api:
        value = api.get("catalog/revisions", before=before, limit=limit)
        ctl.show(value, lambda value: _print_revisions(shaped(value, list[CatalogRevisionView])))


@command(catalog_app, "show")
def show(
    ctl: Ctl,
    revision: Annotated[
        int | None, typer.Argument(metavar="[N]", min=1, help="A revision. Default: the one that rules.")
    ] = None,
) -> None:
    """Print a revision as YAML that `apply` takes."""
    from llmgw.messages.admin import CatalogView

    with ctl.connect() as api:
        ctl.show(api.get("catalog", revision=revision), lambda value: _print_revision(shaped(value, CatalogView)))


@command(catalog_app, "rollback")
def rollback(
    ctl: Ctl,
    revision: Annotated[int, typer.Argument(metavar="N", min=1, help="The revision to return to.")],
    yes: YES = False,
    dry_run: DRY_RUN = False,
    wait: WAIT = False,
    text: NOTE = "",
) -> None:
    """Make the content of an earlier revision the next one: print the plan, ask, and apply it."""
    with ctl.connect() as api:
        _carry_through(ctl, api, {"revision": revision}, yes=yes, dry_run=dry_run, wait=wait, text=text)


def _carry_through(
    ctl: Ctl, api: AdminClient, wish: dict[str, Any], *, yes: bool, dry_run: bool, wait: bool, text: str
) -> None:
    from llmgw.messages.admin import AppliedCatalog, CatalogPlan

    value = api.post("catalog/plan", wish)
    plan = shaped(value, CatalogPlan)
    if dry_run:
        ctl.show(value, lambda _: print_plan(plan))
        return
    if not ctl.as_json:
        print_plan(plan)
    if not yes and not plan.unchanged:
        _ask(ctl, plan)
    # Whoever was asked has seen this plan; when it would stop too much only by now, the server refuses.
    confirmed = yes or plan.confirm is not None
    value = api.post("catalog", {**wish, "base": plan.base, "note": text, "confirmed": confirmed})
    applied = shaped(value, AppliedCatalog)
    if ctl.as_json:
        print_json(value)
    else:
        print(cells.text(applied.message), flush=True)
    if wait:
        wait_until_ready(api, applied.revision)


def _ask(ctl: Ctl, plan: CatalogPlan) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "without a terminal to ask on, this needs --yes (or --dry-run, for the plan alone)"
        )
    if ctl.as_json:
        with contextlib.redirect_stdout(sys.stderr):
            print_plan(plan)
    typer.confirm("Apply it although it stops so much?" if plan.confirm else "Apply it?", abort=True, err=True)


def _print_revisions(views: list[CatalogRevisionView]) -> None:
    columns: list[str | Column] = [Column("revision", right=True), f"at ({cells.time_zone()})", "by", "note"]
    rows = [
        [
            f"{'* ' if view.ruling else ''}{view.revision}",
            cells.local_time(view.at),
            cells.text(view.by),
            cells.text(view.note),
        ]
        for view in views
    ]
    print_table(columns, rows, empty="there are none")


def _print_revision(view: CatalogView) -> None:
    state = "which rules" if view.ruling else "which rules no more"
    print(f"# Catalog revision {view.revision}, {state}.")
    print(f"# {cells.local_time(view.at)} {cells.time_zone()}, by {cells.text(view.by)}: {cells.text(view.note)}")
    sys.stdout.write(catalog_yaml(view.models))
