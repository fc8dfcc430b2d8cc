"""Which engines exist, and which a node offers."""

from __future__ import annotations

import pytest

from llmgw.config.agent import AgentConfig, Engines, LlamacppEngine, SimEngine
from llmgw.engines.registry import adapter, offered


def config(engines: Engines) -> AgentConfig:
    return AgentConfig(node_id="n", server="https://gw:1", engines=engines)


def test_an_engine_is_found_by_the_catalogs_word_for_it() -> None:
    assert adapter("sim").name == "sim"
    assert adapter("llamacpp").name == "llamacpp"


def test_an_unknown_engine_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ValueError, match=r"'tgi'.*llamacpp, sim"):
        adapter("tgi")


def test_a_node_offers_what_it_is_configured_to_run() -> None:
    assert offered(config(Engines())) == []
    both = Engines(llamacpp=LlamacppEngine(bin="/opt/llama-server"), sim=SimEngine(enabled=True))
    assert [each.name for each in offered(config(both))] == ["llamacpp", "sim"]
    assert adapter("llamacpp").program(config(both)) == "/opt/llama-server"
