"""How many GPUs a command line asks for, against those that the shard has."""

from __future__ import annotations

import re
from collections.abc import Mapping

from llmgw.engines.command_line import Reading, value_of
from llmgw.messages.agent import ShardSpec


def whole_number(text: str | None, default: int) -> int | None:
    """The number of a flag's value: `default` where none is given, None where it is no whole number above 0."""
    if text is None:
        return default
    return int(text) if re.fullmatch(r"[1-9]\d{0,5}", text) else None


def parallel_problems(
    spec: ShardSpec,
    sizes: Mapping[str, tuple[tuple[str, ...], int]],
    reading: Reading,
) -> list[str]:
    """Sentences when the product of the sizes is not the number of GPUs, or does not divide over the nodes.

    `sizes` is name → (the flag's spellings, the size where `args` says none). On the CPU any product will do.
    """
    who = f"profile {spec.profile!r} of model {spec.model!r}"
    world = 1
    shown = []
    for name, (spellings, default) in sizes.items():
        given = value_of(spec.args, spellings, reading)
        size = whole_number(given, default)
        if size is None:
            return [f"{who} gives {spellings[0]} {given}, which is no whole number above 0; correct it"]
        world *= size
        if size > 1 or default > 1:
            shown.append(f"{name} {size}")
    product = " × ".join(shown) or "no parallelism"
    if spec.nodes > 1 and world % spec.nodes:
        return [
            f"{who} asks for {product} = {world} ranks, which does not divide over {spec.nodes} nodes; change "
            "one of them"
        ]
    gpus = len(spec.gpus) * spec.nodes
    if spec.gpus and world != gpus:
        return [
            f"{who} asks for {product}, which takes {world} GPUs, and its replica has {spec.nodes} × "
            f"{len(spec.gpus)} = {gpus}; change the parallelism, nodes or gpus_per_node"
        ]
    return []


def rank_problems(spec: ShardSpec) -> list[str]:
    """Sentences for a place in the replica that cannot be."""
    if not 0 <= spec.rank < spec.nodes:
        return [f"rank {spec.rank} is not below {spec.nodes} nodes; restart the replica"]
    return []
