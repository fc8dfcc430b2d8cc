"""A plan as a table for people, and a catalog as the YAML that `apply` takes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.options import note
from llmgw.cli.output import Column, print_table

if TYPE_CHECKING:
    from llmgw.messages.admin import CatalogPlan, ModelPlan, ProfilePlan


def print_plan(plan: CatalogPlan) -> None:
    """What would change, one line a profile, then the sums; what stops too much is said loudly, on stderr."""
    if plan.unchanged:
        print(f"this is what revision {plan.base} says already, which rules; nothing changes")
    if plan.models:
        columns: list[str | Column] = ["model", "profile", "change"]
        columns += [Column(name, right=True) for name in ("starts", "stops", "rolls")]
        print_table([*columns, "notes"], [row for model in plan.models for row in _rows(model)])
    if plan.models or not plan.unchanged:
        same = f"; {_counted(plan.models_unchanged, 'model')} unchanged" if plan.models_unchanged else ""
        print(f"replicas: {plan.starts} to start, {plan.stops} to stop, {plan.rolls} to roll{same}")
    for warning in plan.warnings:
        note(f"warning: {cells.text(warning)}")
    if plan.confirm is not None:
        note(f"WARNING: {cells.text(plan.confirm)}")


def catalog_yaml(models: list[dict[str, Any]]) -> str:
    """Models as `GET /api/v1/catalog` has them, as YAML. What has its default is left out where that is known."""
    import yaml

    from llmgw.config.errors import ConfigError
    from llmgw.config.load import catalog_of

    try:
        models = catalog_of(models).model_dump(mode="json", exclude_defaults=True).get("models", [])
    except ConfigError:
        pass  # the server is newer and says more than is known here: all of it is shown
    # Unprintable characters beyond ASCII (U+0085 is a line's end to YAML) survive only when all are escaped.
    printable = json.dumps(models, ensure_ascii=False).isprintable()
    text: str = yaml.safe_dump({"models": models}, sort_keys=False, allow_unicode=printable, width=2**31)
    return text


def _rows(model: ModelPlan) -> list[list[str]]:
    rows = []
    static = [
        *(f"+ {url}" for url in model.endpoints_added),
        *(f"- {url}" for url in model.endpoints_removed),
        *(f"~ {url}" for url in model.endpoints_changed),
    ]
    if static or model.keys or not model.profiles:
        said = [f"{', '.join(model.keys)} changed"] if model.keys else []
        if model.change in ("added", "removed"):
            said.insert(0, model.change)
        said += [f"static endpoints: {', '.join(static)}"] if static else []
        rows.append(
            [cells.text(model.name), "", "; ".join(said) or "static endpoints in another order", *[""] * 4]
        )
    return rows + [_row(model, profile) for profile in model.profiles]


def _row(model: ModelPlan, profile: ProfilePlan) -> list[str]:
    counts = [str(count) if count else "" for count in (profile.starts, profile.stops, profile.rolls)]
    return [cells.text(model.name), cells.text(profile.name), _change(profile), *counts, _notes(profile)]


def _change(profile: ProfilePlan) -> str:
    if profile.change == "added":
        return f"added, {_counted(profile.replicas_after, 'replica')}"
    if profile.change == "removed":
        return f"removed, had {_counted(profile.replicas_before, 'replica')}"
    said = []
    if profile.replicas_before != profile.replicas_after:
        said.append(f"replicas {profile.replicas_before} → {profile.replicas_after}")
    if profile.rolled_by:
        said.append(f"{', '.join(profile.rolled_by)} changed: rolls")
    if profile.keys:
        said.append(f"{', '.join(profile.keys)} changed: rolls nothing")
    return "; ".join(said) or "unchanged"


def _notes(profile: ProfilePlan) -> str:
    said = []
    if profile.later:
        said.append(f"{profile.later} of the starts when others have stopped")
    if profile.never is not None:
        said.append("no node could ever host it")
    elif profile.unplaced:
        said.append(f"{profile.unplaced} without a place now")
    return "; ".join(said)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
