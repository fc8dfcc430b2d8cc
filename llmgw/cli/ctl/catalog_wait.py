"""Waits until all that the catalog wants is ready, with progress, or says what is not and why."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import AdminClient, server_view, shaped
from llmgw.cli.ctl.options import note
from llmgw.cli.ctl.patience import Patience
from llmgw.cli.output import format_age
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.messages.admin import ModelView, ReplicaView

POLL_S = 0.5
STUCK_LOOKS = 6
"""So many looks in a row must find something missing and nothing under way before it is said to be stuck."""

_UNDER_WAY = frozenset({"adopting", "starting", "draining", "stopping", "failed"})


def wait_until_ready(api: AdminClient, revision: int) -> None:
    """Return when every wanted replica is ready in the form that the catalog wants, and nothing else runs.

    Raises a SentenceError when another revision comes to rule, or when nothing goes on and something is missing.
    """
    from llmgw.messages.admin import CatalogRevisionView, ModelView, ReplicaView, ServerView

    patience, began, said, stuck = Patience(), time.monotonic(), "", 0

    def ask(path: str, **parameters: int) -> Any:
        return patience.ask(lambda: api.get(path, **parameters), lambda: server_view(api).settling)

    while True:
        (newest,) = shaped(ask("catalog/revisions", limit=1), list[CatalogRevisionView])
        if newest.revision != revision:
            raise SentenceError(
                f"not waiting on: {newest.by} made revision {newest.revision}, which rules instead of {revision}"
            )
        models = shaped(ask("models"), list[ModelView])
        replicas = shaped(ask("replicas"), list[ReplicaView])
        settling = shaped(ask("server"), ServerView).settling
        missing = _missing(models, replicas)
        wanted = sum(profile.wanted for model in models for profile in model.profiles)
        if not missing and not settling:
            note(f"all {wanted} wanted replicas are ready after {format_age(time.monotonic() - began)}")
            return
        progress = _progress(wanted, models, replicas)
        if progress != said:
            note(progress)
            said = progress
        under_way = settling or any(_under_way(replica) for replica in replicas)
        stuck = 0 if under_way else stuck + 1
        if stuck >= STUCK_LOOKS:
            raise SentenceError("\n".join(_reasons(api, revision, missing)))
        time.sleep(POLL_S)


def _under_way(replica: ReplicaView) -> bool:
    """Whether something goes on with it; of one whose rests are on a lost node nothing is to be expected."""
    if replica.state not in _UNDER_WAY:
        return False
    return not replica.shards or any(shard.phase not in ("lost", "stopped", "failed") for shard in replica.shards)


def _missing(models: list[ModelView], replicas: list[ReplicaView]) -> dict[tuple[str, str], str]:
    """(model, profile) → what is not as it should be, one sentence without its reason."""
    live = [replica for replica in replicas if replica.state in ("adopting", "starting", "ready")]
    ready = Counter(
        (replica.model, replica.profile) for replica in live if replica.state == "ready" and not replica.outdated
    )
    wanted = {(model.name, profile.name): profile.wanted for model in models for profile in model.profiles}
    old = Counter(
        (replica.model, replica.profile)
        for replica in live
        if replica.outdated or (replica.model, replica.profile) not in wanted
    )
    found = {}
    for key in dict.fromkeys([*wanted, *old]):
        said = []
        if ready[key] < wanted.get(key, 0):
            said.append(f"{ready[key]} of {wanted[key]} ready")
        if old[key]:
            said.append(f"{old[key]} still in a form that is not wanted any more")
        if said:
            found[key] = f"{'/'.join(key)}: {', '.join(said)}"
    return found


def _progress(wanted: int, models: list[ModelView], replicas: list[ReplicaView]) -> str:
    ready = sum(1 for replica in replicas if replica.state == "ready" and not replica.outdated)
    parts = [f"{ready} of {wanted} are ready"]
    old = sum(1 for replica in replicas if replica.state == "ready" and replica.outdated)
    if old:
        parts.append(f"{old} still in their old form")
    for state in ("starting", "draining", "stopping", "failed"):
        there = [replica for replica in replicas if replica.state == state]
        if there:
            parts.append(f"{state}: {cells.listed([_with_progress(replica) for replica in there])}")
    return "; ".join(parts)


def _with_progress(replica: ReplicaView) -> str:
    told = [cells.progress(shard.progress) for shard in replica.shards if shard.progress]
    return f"{replica.replica_id} ({told[0]})" if told else replica.replica_id


def _reasons(api: AdminClient, revision: int, missing: dict[tuple[str, str], str]) -> list[str]:
    """Each sentence with why nothing goes on: from `explain`, the last failure, or the plan of this revision."""
    from llmgw.messages.admin import CatalogPlan, ExplainView

    plan = shaped(api.post("catalog/plan", {"revision": revision}), CatalogPlan)
    planned = {(model.name, profile.name): profile for model in plan.models for profile in model.profiles}
    sentences = []
    for key, sentence in missing.items():
        explained = shaped(api.get("explain", model=key[0]), ExplainView)
        profile = next((profile for profile in explained.profiles if profile.name == key[1]), None)
        why = None
        if profile is not None and profile.ready < profile.wanted:
            why = profile.summary
        elif profile is not None and profile.last_failure:
            why = f"the last failure: {profile.last_failure}"
        elif key in planned:
            why = planned[key].never or planned[key].reason
        sentences.append(f"{sentence}: {cells.text(why)}" if why else sentence)
    return sentences
