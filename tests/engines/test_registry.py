"""Which engines exist, and which a node offers."""

from __future__ import annotations

from typing import get_args

import pytest

from llmgw.config.agent import AgentConfig, Engines, LlamacppEngine, SglangEngine, SimEngine, VllmEngine
from llmgw.config.catalog import EngineName
from llmgw.engines.registry import adapter, offered


def config(engines: Engines) -> AgentConfig:
    return AgentConfig(node_id="n", server="https://gw:1", engines=engines)


def test_an_engine_is_found_by_the_catalogs_word_for_it() -> None:
    for name in get_args(EngineName):
        assert adapter(name).name == name


def test_an_unknown_engine_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ValueError, match=r"'tgi'.*llamacpp, sglang, sim, vllm"):
        adapter("tgi")


def test_a_node_offers_what_it_is_configured_to_run() -> None:
    assert offered(config(Engines())) == []
    every = Engines(
        llamacpp=LlamacppEngine(), sglang=SglangEngine(), sim=SimEngine(enabled=True), vllm=VllmEngine()
    )
    assert [each.name for each in offered(config(every))] == ["llamacpp", "sglang", "sim", "vllm"]
    both = Engines(llamacpp=LlamacppEngine(bin="/opt/llama-server"), sim=SimEngine(enabled=True))
    assert [each.name for each in offered(config(both))] == ["llamacpp", "sim"]
    assert adapter("llamacpp").program(config(both)) == "/opt/llama-server"
