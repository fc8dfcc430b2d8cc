"""Cuts the free text of an agent's messages to what a person reads, and its figures to what can be reckoned with.

What has no end is cut and not refused: a refused registration would take the node out of the fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec

from llmgw.messages.agent import HeldShard, Inventory, Register, Report

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
PHASE_AGE_S_MAX = 1e9
"""Thirty years: a moment so long ago still has a date."""

Struct = TypeVar("Struct", bound=msgspec.Struct)
Message = TypeVar("Message", Register, Report)


def clip(message: Message) -> Message:
    """The message with every free text and figure within its limit; the same object when all were."""
    inventory = message.inventory
    shards = message.held if isinstance(message, Register) else message.shards
    if inventory is not None:
        inventory = clip_inventory(inventory)
    kept = _each(shards, _held)
    if inventory is message.inventory and kept is shards:
        return message
    name = "held" if isinstance(message, Register) else "shards"
    return msgspec.structs.replace(message, **{"inventory": inventory, name: kept})


def clip_inventory(inventory: Inventory) -> Inventory:
    """What a node has, with every free text and figure within its limit."""
    parts = {
        name: kept
        for name in ("gpus", "ports", "fabrics", "engines", "findings")
        if (kept := _each(getattr(inventory, name), _texts)) is not getattr(inventory, name)
    }
    return msgspec.structs.replace(inventory, **parts) if parts else inventory


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
