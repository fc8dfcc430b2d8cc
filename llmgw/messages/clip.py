"""Cuts the free text of an agent's messages to what a person reads, and its figures to what can be reckoned with.

What has no end is cut and not refused: a refused registration would take the node out of the fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec

from llmgw.messages.agent import (
    LOG_CHUNK_BYTES_MAX,
    HeldShard,
    Inventory,
    LogChunk,
    Register,
    Report,
)
from llmgw.messages.findings import SEVERITIES, Finding

TEXT_CHARS_MAX = 2000
"""Of any one text: a GPU's name, why it is not usable, each part of a finding, why a shard failed."""
LIST_MAX = 256
"""Of the names in one list, such as a fabric's adapters."""
TAIL_LINES_MAX = 1000
TAIL_CHARS_MAX = 256 * 1024
"""Of a shard's last output, the newest lines first."""
NUMBER_MAX = 2**62
"""Of any one figure, in either direction. JSON has numbers that no float can hold, and pages, metrics and clients
reckon with them."""
FINDING_CHECKS_MAX = 32
"""Of the distinct checks that findings of one node may name. Metrics tell a bounded number apart, and no node
may take the places of all others."""
FINDINGS_CHARS_MAX = 64 * 1024
"""Of all findings of one node together: everybody's overview shows them."""
PHASE_AGE_S_MAX = 1e9
"""Thirty years: a moment so long ago still has a date."""

Struct = TypeVar("Struct", bound=msgspec.Struct)
Message = TypeVar("Message", Register, Report)


def clip(message: Message, node_id: str) -> Message:
    """The message of a node with every free text and figure within its limit; the same object when all were."""
    parts: dict[str, object] = {}
    if message.inventory is not None:
        parts["inventory"] = clip_inventory(message.inventory, node_id)
    if isinstance(message, Register):
        parts["held"] = _each(message.held, _held)
    else:
        parts["shards"] = _each(message.shards, _held)
        parts["logs"] = _each(message.logs, _log)
        for name in ("helps", "weights", "fabrics", "bandwidths"):
            parts[name] = _each(getattr(message, name), _refused)
    changed = {name: kept for name, kept in parts.items() if kept is not getattr(message, name)}
    return msgspec.structs.replace(message, **changed) if changed else message


def clip_inventory(inventory: Inventory, node_id: str) -> Inventory:
    """What a node has, with every free text and figure within its limit."""
    parts = {
        name: kept
        for name in ("gpus", "ports", "fabrics", "engines", "findings")
        if (kept := _each(getattr(inventory, name), _texts)) is not getattr(inventory, name)
    }
    findings = parts.get("findings", inventory.findings)
    if (few := _few(findings, node_id)) is not findings:
        parts["findings"] = few
    return msgspec.structs.replace(inventory, **parts) if parts else inventory


def _few(findings: list[Finding], node_id: str) -> list[Finding]:
    """As many as one node may have, the worst first where there are more, and a word of those left out."""
    if _within(findings):
        return findings
    worst = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    kept: list[Finding] = []
    checks: set[str] = set()
    chars = 0
    for finding in worst:
        size = _chars(finding)
        if chars + size <= FINDINGS_CHARS_MAX and (
            finding.check in checks or len(checks) < FINDING_CHECKS_MAX - 1
        ):
            kept.append(finding)
            checks.add(finding.check)
            chars += size
    return [*kept, _left_out(len(findings) - len(kept), node_id)]


def _within(findings: list[Finding]) -> bool:
    if len({finding.check for finding in findings}) > FINDING_CHECKS_MAX:
        return False
    return sum(map(_chars, findings)) <= FINDINGS_CHARS_MAX


def _chars(finding: Finding) -> int:
    return sum(len(text) for text in (finding.check, finding.where, finding.what, finding.why, finding.remedy))


def _left_out(count: int, node_id: str) -> Finding:
    return Finding(
        check="findings-left-out",
        severity="warning",
        where=node_id,
        what=f"{node_id} reports {count} findings beyond the {FINDING_CHECKS_MAX} checks and "
        f"{FINDINGS_CHARS_MAX // 1024} KiB that are kept of one node; they are left out",
        why="an agent of ours does not find so much: what speaks there may be something else",
        remedy="run `llmgw doctor` there; if it is not ours, "
        f"`llmgw ctl cert revoke {node_id}` on the authority's host",
    )


def clip_text(text: str) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 1] + "…"


def _each(items: list[Struct], one: Callable[[Struct], Struct]) -> list[Struct]:
    kept = [one(item) for item in items]
    return kept if any(new is not old for new, old in zip(kept, items, strict=True)) else items


def _texts(item: Struct) -> Struct:
    """A struct with its strings and figures cut, in whatever lists, mappings and structs they stand."""
    cut: dict[str, object] = {}
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if value is not None and (kept := _cut(value)) is not value:
            cut[name] = kept
    return msgspec.structs.replace(item, **cut) if cut else item


def _cut(value: Any) -> Any:
    """The value, or one of its kind that is within the limits."""
    if isinstance(value, str):
        return clip_text(value)
    if isinstance(value, (int, float)):
        return value if -NUMBER_MAX <= value <= NUMBER_MAX else _figure(value)
    if isinstance(value, list) and value:
        items = [_cut(item) for item in value[:LIST_MAX]]
        same = len(items) == len(value) and all(new is old for new, old in zip(items, value, strict=True))
        return value if same else items
    if isinstance(value, dict) and value:
        pairs = [(_cut(key), _cut(each)) for key, each in islice(value.items(), LIST_MAX)]
        same = len(pairs) == len(value) and all(
            key is old and each is value[old] for (key, each), old in zip(pairs, value, strict=True)
        )
        return value if same else dict(pairs)
    if isinstance(value, msgspec.Struct):
        return _texts(value)
    return value


def _figure(value: float) -> float:
    # Of the same kind: an infinite rate stays a float, a count stays whole.
    return type(value)(max(-NUMBER_MAX, min(value, NUMBER_MAX)))


def _held(shard: HeldShard) -> HeldShard:
    # The spec is no free text: it is what adoption compares, and is kept as it was sent.
    cut: dict[str, object] = {}
    if shard.reason is not None and len(shard.reason) > TEXT_CHARS_MAX:
        cut["reason"] = clip_text(shard.reason)
    if shard.progress is not None and (progress := _texts(shard.progress)) is not shard.progress:
        cut["progress"] = progress
    if (tail := _tail(shard.output_tail)) != shard.output_tail:
        cut["output_tail"] = tail
    if not 0 <= shard.phase_age_s <= PHASE_AGE_S_MAX:
        cut["phase_age_s"] = max(0.0, min(shard.phase_age_s, PHASE_AGE_S_MAX))
    for name in ("exit_code", "engine_pid"):
        value = getattr(shard, name)
        if value is not None and (kept := _cut(value)) is not value:
            cut[name] = kept
    return msgspec.structs.replace(shard, **cut) if cut else shard


def _log(chunk: LogChunk) -> LogChunk:
    chunk = _refused(chunk)
    if len(chunk.text) <= LOG_CHUNK_BYTES_MAX:
        return chunk
    return msgspec.structs.replace(chunk, text=chunk.text[-LOG_CHUNK_BYTES_MAX:])


def _refused(answer: Struct) -> Struct:
    """An answer with a bounded sentence of why there is none; the rest of it has limits of its own."""
    error: str | None = answer.error  # type: ignore[attr-defined]  # all of the answers have one
    if error is None or len(error) <= TEXT_CHARS_MAX:
        return answer
    return msgspec.structs.replace(answer, error=clip_text(error))


def _tail(lines: Sequence[str]) -> list[str]:
    kept: list[str] = []
    left = TAIL_CHARS_MAX
    for line in reversed(lines[-TAIL_LINES_MAX:]):
        left -= len(line) + 1
        if left < 0:
            kept.append("… (cut: this and what stood before it is too long)")
            break
        kept.append(line)
    return kept[::-1]
