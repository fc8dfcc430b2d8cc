"""The engines that llmgw knows, by the catalog's word for each. A new engine is one file and one line here."""

from __future__ import annotations

from llmgw.config.agent import AgentConfig
from llmgw.engines.base import EngineAdapter
from llmgw.engines.llamacpp import LlamacppAdapter
from llmgw.engines.sglang import SglangAdapter
from llmgw.engines.sim import SimAdapter
from llmgw.engines.vllm import VllmAdapter

_ADAPTERS: dict[str, EngineAdapter] = {
    each.name: each for each in (LlamacppAdapter(), SglangAdapter(), SimAdapter(), VllmAdapter())
}


def adapter(name: str) -> EngineAdapter:
    """The adapter of an engine. Raises ValueError with a sentence that names those that exist."""
    found = _ADAPTERS.get(name)
    if found is None:
        raise ValueError(
            f"no engine is called {name!r} in this version; it knows {', '.join(sorted(_ADAPTERS))}: "
            "correct the name, or update llmgw on this node"
        )
    return found


def offered(config: AgentConfig) -> list[EngineAdapter]:
    """The adapters of the engines that this node is configured to run, by name."""
    return [_ADAPTERS[name] for name in sorted(_ADAPTERS) if _ADAPTERS[name].offered(config)]
