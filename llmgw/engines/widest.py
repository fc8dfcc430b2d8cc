"""The widest commands that llmgw would ever produce for an engine, from its adapter's own plans.

Every task, shape, rank, source and setting is planned, so a flag that an adapter learns is checked without a word
here. What the adapter refuses would never be started and is left out.
"""

from __future__ import annotations

import itertools
import os.path
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from llmgw.config.agent import AgentConfig, Engines
from llmgw.config.catalog import Task
from llmgw.engines.base import EngineAdapter, LaunchContext
from llmgw.engines.flag_check import flags_in
from llmgw.engines.help_rules import help_rules
from llmgw.messages.agent import Gpu, Rendezvous, ShardSpec

# Nodes, GPUs on each, tensor and pipeline parallelism.
_SHAPES = [(1, 0, 1, 1), (1, 1, 1, 1), (1, 4, 4, 1), (1, 4, 2, 2), (2, 1, 1, 2), (2, 4, 8, 1), (2, 4, 4, 2)]
# What the catalog says, and where the agent put it when it fetched it.
_SOURCES = [
    ("org/name", None),
    ("/models/name", None),
    ("/models/name.gguf", None),
    ("https://weights.example.org/name.gguf", "/work/weights/name.gguf"),
]
_PORT = 21000


@lru_cache(maxsize=16)
def widest_flags(adapter: EngineAdapter) -> Mapping[str, tuple[str, ...]]:
    """Every flag that any of the commands has, by whose it is: the engine's name, or `ray`."""
    flags: dict[str, tuple[str, ...]] = {}
    for whose, commands in widest_commands(adapter).items():
        rules = help_rules(whose)
        begins = list(rules.ask[:-1])
        found: dict[str, None] = {}
        for argv in commands:
            arguments = argv[1:]
            if arguments[: len(begins)] == begins:
                arguments = arguments[len(begins) :]
            found.update(dict.fromkeys(flags_in(arguments, rules)))
        flags[whose] = tuple(found)
    return flags


def widest_commands(adapter: EngineAdapter, program: str | None = None) -> dict[str, list[list[str]]]:
    """Every command line that the adapter plans, over all settings, tasks, sources, shapes and ranks.

    By whose it is: the engine's name, or the name of the program that is started beside it or instead of it.
    `program` is the configured program or interpreter; None is the default's.
    """
    found: dict[str, dict[tuple[str, ...], None]] = {adapter.name: {}}
    for config, (spec, model_path) in itertools.product(_configs(adapter, program), _specs(adapter.name)):
        for key in ("key", None) if spec.rank == 0 else (None,):
            context = _context(adapter, config, spec, model_path, key)
            if adapter.problems(spec, context):
                continue
            plan = adapter.plan(spec, context)
            for process in (plan.engine, *plan.sidecars):
                named = process.argv[0]
                whose = adapter.name if named == adapter.program(config) else os.path.basename(named)
                found.setdefault(whose, {}).setdefault(tuple(process.argv))
    return {whose: [list(argv) for argv in commands] for whose, commands in found.items()}


def _configs(adapter: EngineAdapter, program: str | None) -> Iterator[AgentConfig]:
    """A node for every combination of the engine's settings that have a few values only."""
    field = Engines.model_fields[adapter.name]
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if _is_model(kind)]
    for kind in kinds:
        choices = {name: _values(each.annotation) for name, each in kind.model_fields.items()}
        choices = {name: values for name, values in choices.items() if values}
        for values in itertools.product(*choices.values()):
            settings: dict[str, Any] = dict(zip(choices, values, strict=True))
            if program is not None:
                settings["bin" if "bin" in kind.model_fields else "python"] = program
            if adapter.name == "sim":
                settings.pop("python", None)
            engines = Engines.model_validate({adapter.name: settings})
            config = AgentConfig(node_id="node", server="https://server:8443", engines=engines)
            if adapter.offered(config):
                yield config


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _values(annotation: Any) -> tuple[Any, ...]:
    if annotation is bool:
        return (False, True)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _specs(engine: str) -> list[tuple[ShardSpec, str | None]]:
    """Specs of every task, source, shape and rank, each with where its source was put."""
    specs = []
    for task, (source, path), (nodes, gpus, tensor, pipeline) in itertools.product(
        get_args(Task), _SOURCES, _SHAPES
    ):
        for rank in range(nodes):
            spec = ShardSpec(
                shard_id=f"replica.{rank}",
                replica_id="replica",
                model="name",
                profile="default",
                profile_hash="0",
                served_names=["name", "alias"],
                rank=rank,
                nodes=nodes,
                gpus=[f"GPU-{index}" for index in range(gpus)],
                engine=engine,
                source=source,
                task=task,
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
                fabric="fabric" if nodes > 1 else None,
                rendezvous=Rendezvous(host="10.0.0.1", port=_PORT) if rank else None,
            )
            specs.append((spec, path))
    return specs


def _context(
    adapter: EngineAdapter,
    config: AgentConfig,
    spec: ShardSpec,
    model_path: str | None,
    api_key: str | None,
) -> LaunchContext:
    many = spec.nodes > 1
    extra = adapter.extra_ports(spec, config)
    return LaunchContext(
        config=config,
        address=f"10.0.0.{spec.rank + 1}",
        gpus=[Gpu(index=index, uuid=uuid, name="GPU") for index, uuid in enumerate(spec.gpus)],
        work_dir="/work/shard",
        adapters=["mlx5_0:1", "mlx5_1:1"],
        mgmt_interface="eth0",
        http_port=_PORT + 1 if spec.rank == 0 else None,
        rendezvous_host="10.0.0.1" if many else None,
        rendezvous_port=_PORT if many else None,
        extra_ports=[_PORT + 2 + index for index in range(extra)],
        model_path=model_path,
        api_key=api_key,
        base_env={"PATH": "/usr/bin", "HOME": "/root"},
    )
