"""What failures say about nodes and about new forms of a profile.

Three different profiles that failed on one node while they run elsewhere make the node suspect. A changed
profile whose replicas fail and fail while the old form serves is not rolled out any further.
"""

from __future__ import annotations

from llmgw.config.base import format_duration
from llmgw.config.catalog import Catalog
from llmgw.fleet.actions import Action, StopRollout, SuspectNode, TrustNode
from llmgw.fleet.model import Fleet, ReplicaState
from llmgw.fleet.sets import Sets
from llmgw.fleet.settings import FleetSettings

SUSPECT_PROFILES = 3


def judge_trust(sets: Sets, now: float, settings: FleetSettings) -> list[Action]:
    """Nodes that become suspect or are trusted again."""
    actions: list[Action] = []
    within = format_duration(settings.suspect_window_s)
    for node in sets.fleet.nodes.values():
        if not node.failures and node.suspect is None:
            continue
        failed = {key for at, key in node.failures if now - at < settings.suspect_window_s}
        elsewhere = sorted(key for key in failed if _runs_elsewhere(sets, key, node.node_id))
        if node.suspect is None and len(elsewhere) >= SUSPECT_PROFILES:
            names = ", ".join("/".join(key) for key in elsewhere)
            actions.append(SuspectNode(node.node_id, f"{names} failed here within {within} and run elsewhere"))
        elif node.suspect is not None and not failed:
            actions.append(TrustNode(node.node_id, f"nothing failed there for {within}"))
    return actions


def judge_rollouts(sets: Sets) -> list[Action]:
    """Changed profiles whose new form has failed too often, while the old one still serves."""
    actions: list[Action] = []
    for key, backoff in sets.fleet.backoff.items():
        found = sets.catalog.find(*key)
        if found is None or backoff.failures < found[1].max_failures:
            continue
        new_form = found[0].profile_hashes[found[1].name]
        if backoff.profile_hash != new_form or sets.fleet.stopped_rollouts.get(key) == new_form:
            continue
        replicas = sets.by_profile.get(key, [])
        if any(replica.profile_hash == new_form and replica.was_ready for replica in replicas):
            continue
        old = [r for r in replicas if r.profile_hash != new_form and r.state is ReplicaState.READY]
        if old:
            reason = f"the new form failed {backoff.failures} times, the last: {backoff.reason}"
            actions.append(StopRollout(key[0], key[1], new_form, old[-1].profile_hash, reason))
    return actions


def forget_forms(fleet: Fleet, before: Catalog, after: Catalog) -> None:
    """Another catalog rules: a form that it brings, or brings back, is tried anew, whatever it did earlier.

    Somebody who applies a form again has often mended what it died of.
    """
    for model in after.models:
        for profile, form in model.profile_hashes.items():
            old = before.by_name.get(model.name)
            if old is None or old.profile_hashes.get(profile) != form:
                fleet.backoff.pop((model.name, profile), None)
                fleet.stopped_rollouts.pop((model.name, profile), None)


def _runs_elsewhere(sets: Sets, key: tuple[str, str], node_id: str) -> bool:
    return any(
        replica.state is ReplicaState.READY and node_id not in replica.node_ids
        for replica in sets.by_profile.get(key, [])
    )
