"""`llmgw ctl replicas` and `restart`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import AdminClient, segment, shaped
from llmgw.cli.ctl.completion import model_names, replica_names
from llmgw.cli.ctl.names import replica_named
from llmgw.cli.ctl.options import Ctl, command
from llmgw.cli.output import Column, format_age, print_table
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.messages.admin import ModelView, ReplicaView, ShardView
    from llmgw.messages.routes import EndpointFigure

app = typer.Typer()

REPLICA = Annotated[
    str,
    typer.Argument(
        metavar="REPLICA", help="Its id, or a beginning that only it has.", autocompletion=replica_names
    ),
]


@command(app, "replicas")
def replicas(
    ctl: Ctl,
    replica: Annotated[
        str | None,
        typer.Argument(
            metavar="REPLICA", help="Only this replica, with its shards.", autocompletion=replica_names
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Only this model's.", autocompletion=model_names),
    ] = None,
) -> None:
    """Show the replicas: where they run, whether requests go there, and why not."""
    from llmgw.messages.admin import ModelView, ReplicaView

    with ctl.connect() as api:
        if replica is None:
            value = api.get("replicas", model=model)
            ctl.show(value, lambda value: _print_replicas(shaped(value, list[ReplicaView])))
            if not ctl.as_json:
                # What is not there has no row: a profile that fails and fails has a replica for moments only.
                _print_lacking(shaped(api.get("models"), list[ModelView]), model)
        else:
            value = api.get(f"replicas/{segment(resolve(api, replica))}")
            ctl.show(value, lambda value: _print_replica(shaped(value, ReplicaView)))


@command(app, "restart")
def restart(ctl: Ctl, replica: REPLICA) -> None:
    """Replace a replica by a fresh one, which is ready before this one stops."""
    with ctl.connect() as api:
        ctl.show_done(api.post(f"replicas/{segment(resolve(api, replica))}/restart"))


def resolve(api: AdminClient, text: str) -> str:
    """The replica id that `text` is the beginning of. Raises a SentenceError."""
    from llmgw.messages.admin import ReplicaView

    views = shaped(api.get("replicas"), list[ReplicaView])
    return replica_named(text, [view.replica_id for view in views])


def resolve_ended(api: AdminClient, text: str) -> str:
    """As `resolve`, but a name that no running replica has may be that of one that ended: the server knows."""
    try:
        return resolve(api, text)
    except SentenceError:
        return text


def _print_replicas(views: list[ReplicaView]) -> None:
    state = Column("state", state=True)
    columns: list[str | Column] = [
        "replica",
        "model",
        Column("profile", spare=3),
        state,
        "for",
        "nodes",
        Column("fabric", spare=2),
        Column("endpoint", spare=4),
        Column("in flight", spare=1),
        "notes",
    ]
    rows = [
        [
            view.replica_id,
            cells.text(view.model),
            cells.text(view.profile),
            view.state,
            format_age(max(0.0, time.time() - view.since)),
            cells.listed(view.nodes),
            cells.text(view.fabric),
            cells.text(view.endpoint),
            str(view.in_flight),
            _notes(view),
        ]
        for view in views
    ]
    print_table(columns, rows, empty="there are no replicas")


def _print_lacking(models: list[ModelView], only: str | None) -> None:
    """Why a profile has fewer replicas than are wanted, below the table."""
    lines = [
        f"{cells.text(f'{model.name}/{profile.name}')}: {profile.ready} of {profile.wanted} ready: "
        f"{cells.text(profile.reason)}"
        for model in models
        if only is None or only in (model.name, *model.aliases)
        for profile in model.profiles
        if profile.ready + profile.starting < profile.wanted
    ]
    if lines:
        print("\n" + "\n".join(lines))


def _notes(view: ReplicaView) -> str:
    notes = [cells.progress(shard.progress) for shard in view.shards if shard.progress]
    if view.state == "ready" and not view.routed:
        notes.append("not routed to")
    if view.outdated and "its profile has changed" not in (view.reason or ""):
        notes.append("outdated")
    replaces = f"replaces {view.replaces}"
    if view.replaces and view.reason != replaces:
        notes.append(replaces)
    if view.reason:
        notes.append(cells.text(view.reason))
    return "; ".join(notes)


def _print_replica(view: ReplicaView) -> None:
    facts = [
        ("replica", view.replica_id),
        (
            "model",
            f"{cells.text(view.model)}, profile {cells.text(view.profile)}, engine {cells.text(view.engine)}",
        ),
        ("state", f"{view.state} since {cells.local_time(view.since)}"),
        ("reason", cells.text(view.reason)),
        ("created", cells.local_time(view.created_at)),
        ("fabric", cells.text(view.fabric)),
        ("endpoint", f"{cells.text(view.endpoint)}, {'routed to' if view.routed else 'not routed to'}"),
        ("in flight", str(view.in_flight)),
    ]
    if view.figures is not None:
        facts.append(("engine says", _figures(view.figures)))
    if view.replaces:
        facts.append(("replaces", view.replaces))
    if view.outdated:
        facts.append(("outdated", "the profile has changed since this replica was started"))
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{name.ljust(width)}  {value}")
    print()
    print_table(
        ["rank", "node", Column("phase", state=True), "gpus", "pid", "notes"],
        [_shard_row(s) for s in view.shards],
    )
    for shard in view.shards:
        if shard.output_tail:
            print(f"\nlast output of rank {shard.rank} on {shard.node}:")
            for line in shard.output_tail:
                print(f"  {cells.text(line)}")


def _figures(figures: EndpointFigure) -> str:
    said = [] if figures.running is None else [f"{figures.running} running"]
    said += [] if figures.waiting is None else [f"{figures.waiting} waiting"]
    said += [] if figures.cache_used is None else [f"{100 * figures.cache_used:.0f} % of its cache used"]
    if figures.prefix_hits is not None:
        said.append(f"{100 * figures.prefix_hits:.0f} % of prompts found in it")
    if figures.tokens_per_s is not None:
        said.append(f"{figures.tokens_per_s:.0f} tokens/s")
    if figures.preemptions_per_s:
        said.append(f"{60 * figures.preemptions_per_s:.1f} requests a minute set aside for want of room")
    return f"{', '.join(said)} ({format_age(figures.age_s)} ago)"


def _shard_row(shard: ShardView) -> list[str]:
    notes = [cells.progress(shard.progress)] if shard.progress else []
    if shard.reason:
        notes.append(cells.text(shard.reason))
    if shard.exit_code is not None:
        notes.append(f"exit code {shard.exit_code}" if shard.exit_code >= 0 else f"signal {-shard.exit_code}")
    return [
        str(shard.rank),
        shard.node,
        shard.phase,
        cells.listed([str(gpu) for gpu in shard.gpus]),
        cells.NONE if shard.engine_pid is None else str(shard.engine_pid),
        "; ".join(notes),
    ]
