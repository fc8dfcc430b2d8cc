"""Engines that this node offers, each with a sentence when its program cannot run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from llmgw.config.agent import AgentConfig
from llmgw.engines.base import EngineAdapter
from llmgw.messages.agent import EngineOffer


def engine_offers(
    adapters: Sequence[EngineAdapter], missing: Sequence[str], config: AgentConfig
) -> list[EngineOffer]:
    """One offer an engine. Looks at files and starts nothing. `missing` are those without an adapter."""
    offers = [EngineOffer(name=each.name, problem=program_problem(each, config)) for each in adapters]
    unknown = "this version of llmgw has no adapter for it; remove it from engines in agent.yaml, or update llmgw"
    return offers + [EngineOffer(name=name, problem=unknown) for name in missing]


def program_problem(adapter: EngineAdapter, config: AgentConfig) -> str | None:
    """Why the engine's program cannot be started, as a sentence; None when it can."""
    program = adapter.program(config)
    where = f"check engines.{adapter.name} in agent.yaml"
    if os.sep not in program:
        if shutil.which(program) is None:
            return f"there is no program {program!r} on the agent's PATH; {where}, or install it"
        return None
    if not os.path.exists(program):
        return f"the program {program} does not exist; {where}"
    if os.path.isdir(program):
        return f"{program} is a folder and not a program; {where}"
    if not os.access(program, os.X_OK):
        return f"the program {program} is not executable by this agent; chmod +x it, or {where}"
    return None
