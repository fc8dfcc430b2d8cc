"""A shard's record read for others: whether its engine lives, how the server is told of it, and its warnings."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.agent.processes import ProcessIdentity, is_alive
from llmgw.agent.spec_store import ShardRecord
from llmgw.messages.agent import EngineFigures, HeldShard, Progress
from llmgw.messages.findings import Finding


def engine_lives(record: ShardRecord) -> bool:
    """True while the engine that a record names runs."""
    return any(
        one.name == "engine" and is_alive(ProcessIdentity(one.pid, one.start_ticks)) for one in record.processes
    )


def held_shard(
    record: ShardRecord,
    now_boot_s: float,
    progress: Progress | None = None,
    figures: EngineFigures | None = None,
    figures_problem: str | None = None,
) -> HeldShard:
    """A record as the server is told of it."""
    engine = next((one for one in record.processes if one.name == "engine"), None)
    return HeldShard(
        spec=record.spec,
        phase=record.phase,
        version=record.version,
        http_port=record.http_port,
        rendezvous_port=record.rendezvous_port,
        extra_ports=record.extra_ports,
        api_key=record.api_key if record.live else None,
        reason=record.reason,
        exit_code=record.exit_code,
        output_tail=record.output_tail,
        engine_pid=engine.pid if engine else None,
        phase_age_s=max(0.0, now_boot_s - record.phase_since_boot_s),
        progress=progress,
        figures=figures,
        figures_problem=figures_problem,
    )


def warning_findings(records: Iterable[ShardRecord], node_id: str) -> list[Finding]:
    """What was said about how live shards run, as findings on their node; once for all shards of a profile."""
    said: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        for warning in record.warnings:
            said.setdefault((record.spec.model, record.spec.profile, warning), []).append(record.spec.replica_id)
    return [
        Finding(
            check="profile-warning",
            severity="warning",
            where=f"{node_id} {model}/{profile}",
            what=warning,
            why=f"It holds for {', '.join(sorted(set(replicas)))}",
            remedy=f"correct the profile {profile!r} of {model} in the catalog",
        )
        for (model, profile, warning), replicas in said.items()
    ]
