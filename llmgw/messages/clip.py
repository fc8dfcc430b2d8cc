"""Cuts the free text of an agent's messages to what a person reads.

What has no end is cut and not refused: a refused registration would take the node out of the fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from llmgw.messages.agent import HeldShard, Inventory, Register, Report

TEXT_CHARS_MAX = 2000
"""Of any one text: a GPU's name, why it is not usable, each part of a finding, why a shard failed."""
LIST_MAX = 256
"""Of the names in one list, such as a fabric's adapters."""
TAIL_LINES_MAX = 1000
TAIL_CHARS_MAX = 256 * 1024
"""Of a shard's last output, the newest lines first."""

Struct = TypeVar("Struct", bound=msgspec.Struct)
Message = TypeVar("Message", Register, Report)


def clip(message: Message) -> Message:
    """The message with every free text within its limit; the same object when all were."""
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
    """What a node has, with every free text within its limit."""
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
    """A struct with its own strings cut, and the lists, mappings and structs in it."""
    cut: dict[str, object] = {}
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if isinstance(value, str):
            if len(value) > TEXT_CHARS_MAX:
                cut[name] = clip_text(value)
        elif isinstance(value, list) and value and isinstance(value[0], str):
            if len(value) > LIST_MAX or any(len(text) > TEXT_CHARS_MAX for text in value):
                cut[name] = [clip_text(text) for text in value[:LIST_MAX]]
        elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
            if (kept := _each(value, _texts)) is not value:
                cut[name] = kept
        elif isinstance(value, dict) and (
            len(value) > LIST_MAX or any(map(_too_long, (*value, *value.values())))
        ):
            cut[name] = {_clipped(key): _clipped(value[key]) for key in list(value)[:LIST_MAX]}
    return msgspec.structs.replace(item, **cut) if cut else item


def _too_long(value: object) -> bool:
    return isinstance(value, str) and len(value) > TEXT_CHARS_MAX


def _clipped(value: object) -> object:
    """A key or a value of a mapping: only text is cut, and a GPU's index is a number."""
    return clip_text(value) if isinstance(value, str) else value


def _held(shard: HeldShard) -> HeldShard:
    # The spec is no free text: it is what adoption compares, and is kept as it was sent.
    cut: dict[str, object] = {}
    if shard.reason is not None and len(shard.reason) > TEXT_CHARS_MAX:
        cut["reason"] = clip_text(shard.reason)
    if shard.progress is not None and (progress := _texts(shard.progress)) is not shard.progress:
        cut["progress"] = progress
    if (tail := _tail(shard.output_tail)) != shard.output_tail:
        cut["output_tail"] = tail
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
