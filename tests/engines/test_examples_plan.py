"""Every profile in examples/ can be planned by its engine, on every rank: a published example is no guess."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.config.agent import Engines, LlamacppEngine, SglangEngine, VllmEngine
from llmgw.config.catalog import CatalogModel, Profile
from llmgw.config.load import load_server_config
from llmgw.engines.registry import adapter
from llmgw.messages.agent import Rendezvous
from tests.engines.recorded import FLAG_LISTS, flags
from tests.engines.specs import context, spec

ROOT = Path(__file__).parent.parent.parent
CATALOG = load_server_config(ROOT / "examples" / "server.yaml", {}).models
ENGINES = Engines(llamacpp=LlamacppEngine(), sglang=SglangEngine(), vllm=VllmEngine())
MEETING = Rendezvous(host="10.0.0.5", port=21002)


@pytest.mark.parametrize(
    ("model", "profile"),
    [
        pytest.param(model, profile, id=f"{model.name}/{profile.name}")
        for model in CATALOG
        for profile in model.profiles
    ],
)
def test_every_rank_of_an_example_is_planned_with_flags_that_its_engine_lists(
    model: CatalogModel, profile: Profile
) -> None:
    engine = adapter(profile.engine)
    for rank in range(profile.nodes):
        shard = spec(
            engine=profile.engine,
            model=model.name,
            profile=profile.name,
            source=model.source,
            task=model.task,
            served_names=model.served_names,
            nodes=profile.nodes,
            rank=rank,
            rendezvous=MEETING if rank else None,
            gpus=[f"GPU-{index}" for index in range(profile.gpus_per_node)],
            tensor_parallel=profile.tensor_parallel_size,
            pipeline_parallel=profile.pipeline_parallel,
            args=profile.args,
            env=profile.env,
        )
        node = context(
            shard,
            ENGINES,
            http_port=None if rank else 21001,
            rendezvous_host="10.0.0.5" if profile.nodes > 1 else None,
            rendezvous_port=21002 if profile.nodes > 1 else None,
            extra_ports=[21003],
            model_path="/weights/x.gguf" if "://" in model.source else None,
        )
        assert engine.problems(shard, node) == []
        argv = engine.plan(shard, node).engine.argv
        for name in FLAG_LISTS[profile.engine]:
            listed = {spelling for option in flags(name) for spelling in option}
            assert {word for word in argv if word.startswith("--")} <= listed
