"""`llmgw ctl models`, `explain` and `scale`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import shaped
from llmgw.cli.ctl.completion import model_names
from llmgw.cli.ctl.failures import RefusedError
from llmgw.cli.ctl.names import model_and_profile
from llmgw.cli.ctl.options import Ctl, command, note
from llmgw.cli.output import format_age, print_table
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.messages.admin import ExplainProfile, ExplainView, ModelView

app = typer.Typer()


@command(app, "models")
def models(
    ctl: Ctl,
    on_disk: Annotated[
        bool, typer.Option("--on-disk", help="Show what lies in the nodes' weights folders instead.")
    ] = False,
    unused: Annotated[
        bool, typer.Option("--remove-unused", help="Remove from there what no model and no shard refers to.")
    ] = False,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Only this node's weights folder.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
) -> None:
    """Show the catalog's models: how many replicas are wanted, and how many are ready."""
    from llmgw.cli.ctl.weights import remove_unused, show_on_disk
    from llmgw.messages.admin import ModelView

    if on_disk and unused:
        raise SentenceError("give either --on-disk or --remove-unused")
    if (node is not None and not (on_disk or unused)) or (yes and not unused):
        raise SentenceError("--node belongs to --on-disk or --remove-unused, and --yes to --remove-unused")
    with ctl.connect() as api:
        if unused:
            remove_unused(ctl, api, node, yes)
            return
        if on_disk:
            show_on_disk(ctl, api, node)
            return
        ctl.show(api.get("models"), lambda value: _print_models(shaped(value, list[ModelView])))


@command(app, "explain")
def explain(
    ctl: Ctl,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A name or an alias.", autocompletion=model_names)
    ],
) -> None:
    """Say why a model runs where it does, or why it does not run."""
    from llmgw.messages.admin import ExplainView

    with ctl.connect() as api:
        ctl.show(api.get("explain", model=model), lambda value: _print_explain(shaped(value, ExplainView)))


# Without the setting, `scale MODEL -1` reads -1 as an option and talks about that.
@command(app, "scale", context_settings={"ignore_unknown_options": True})
def scale(
    ctl: Ctl,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL[/PROFILE]",
            help="The profile may be left out when there is one.",
            autocompletion=model_names,
        ),
    ],
    replicas: Annotated[int, typer.Argument(metavar="N", min=0, max=1000, help="Replicas that are wanted.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Also if much of what serves is stopped.")] = False,
) -> None:
    """Set how many replicas of a model are wanted; asks before it stops much of what serves."""
    from llmgw.messages.admin import ModelView

    with ctl.connect() as api:
        name, profile = model_and_profile(model, shaped(api.get("models"), list[ModelView]))
        wish = {"model": name, "profile": profile, "replicas": replicas, "confirmed": yes}
        try:
            done = api.post("scale", wish)
        except RefusedError as error:
            if error.code != "needs_confirmation" or not sys.stdin.isatty():
                raise
            note(f"WARNING: {error}")
            typer.confirm("Scale all the same?", abort=True, err=True)
            done = api.post("scale", {**wish, "confirmed": True})
        ctl.show_done(done)


def _print_models(views: list[ModelView]) -> None:
    rows = []
    for view in views:
        names = cells.text(view.name) + (f" ({cells.listed(view.aliases)})" if view.aliases else "")
        notes = [f"{view.queued} queued"] if view.queued else []
        if view.static_endpoints:
            notes = [*notes, cells.listed(view.static_endpoints)]
            rows.append([names, cells.NONE, cells.NONE, cells.NONE, cells.NONE, "; ".join(notes)])
            notes = []
        for profile in view.profiles:
            states = [f"{profile.ready} of {profile.wanted} ready"]
            states += [f"{profile.starting} starting"] if profile.starting else []
            states += [f"{profile.failed} failed"] if profile.failed else []
            shape = f"{profile.nodes} × {profile.gpus_per_node}"
            notes += [f"weight {profile.weight:g}"] if profile.weight != 1 else []
            notes += [cells.text(profile.reason)] if profile.reason or not notes else []
            rows.append([names, profile.name, profile.engine, shape, ", ".join(states), "; ".join(notes)])
            notes = []
    columns = ["model (aliases)", "profile", "engine", "nodes × gpus", "replicas", "notes"]
    print_table(columns, rows, empty="the catalog is empty")


def _print_explain(view: ExplainView) -> None:
    print(cells.text(view.model))
    for profile in view.profiles:
        _print_profile(profile)


def _print_profile(profile: ExplainProfile) -> None:
    print(f"\nprofile {profile.name}: {profile.ready} of {profile.wanted} ready: {cells.text(profile.summary)}")
    if profile.weight != 1:
        print(f"  {_weight(profile.weight)}")
    for replica, nodes in profile.placed.items():
        sits = profile.sits.get(replica)
        print(f"  {replica} runs on {cells.listed(nodes)}" + (f": {cells.text(sits)}" if sits else ""))
    for at, sentence in enumerate(profile.decided):
        print(f"    {cells.text(sentence)}" if at else f"  the next would take {cells.text(sentence)}")
    if profile.feasible:
        print(f"  could host a shard now: {cells.listed(profile.feasible)}")
    for node, why in profile.last.items():
        print(f"  {cells.text(node)} {cells.text(why)}")
    if profile.retry_in_s is not None:
        print(f"  tried again in {format_age(profile.retry_in_s)}")
    if profile.last_failure:
        print(f"  last failure: {cells.text(profile.last_failure)}")
    if profile.refused:
        print()
        rows = [[str(len(t.nodes)), cells.text(t.reason), cells.listed(t.nodes)] for t in profile.refused]
        print_table(["nodes", "refused because", "which"], rows)
        for sentence, nodes in _details(profile).items():
            print(f"  {cells.listed(nodes)}: {cells.text(sentence)}")


def _weight(weight: float) -> str:
    if not weight:
        return "weight 0: gets requests only while nothing else can take them"
    return f"weight {weight:g}: each replica gets {weight:g} times the requests of one with weight 1"


def _details(profile: ExplainProfile) -> dict[str, list[str]]:
    """What nodes say about being refused → the nodes that say it."""
    found: dict[str, list[str]] = {}
    for tally in profile.refused:
        for node, sentence in tally.details.items():
            found.setdefault(sentence, []).append(node)
    return found
