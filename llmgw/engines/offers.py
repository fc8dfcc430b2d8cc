"""Engines that this node offers, each with a sentence when its program cannot run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from llmgw.config.agent import AgentConfig
from llmgw.engines.base import EngineAdapter
from llmgw.messages.agent import EngineOffer


def engine_offers(adapters: Sequence[EngineAdapter], config: AgentConfig) -> list[EngineOffer]:
    """One offer an engine. Looks at files and starts nothing."""
    return [EngineOffer(name=each.name, problem=program_problem(each, config)) for each in adapters]


def program_problem(adapter: EngineAdapter, config: AgentConfig) -> str | None:
    """Why the engine's program cannot be started, as a sentence; None when it can."""
    found = why_not_startable(adapter.program(config))
    if found is None:
        return None
    what, remedy = found
    return f"{what}; {remedy}, or check engines.{adapter.name} in agent.yaml"


def why_not_startable(program: str, path: str | None = None) -> tuple[str, str] | None:
    """(what keeps a program from being tried, what to do), without a start; None when it can be tried.

    `path` is where bare names are looked for; None is this process's own PATH.
    """
    if os.sep not in program:
        if shutil.which(program, path=path) is None:
            here = f"name the one in this folder as ./{program}, or " if os.path.exists(program) else ""
            return f"there is no program {program!r} on PATH", f"{here}install it, or give its path"
        return None
    if not os.path.exists(program):
        return f"the program {program} does not exist", "correct the path"
    if os.path.isdir(program):
        return f"{program} is a folder and not a program", "give the path of the program in it"
    if not os.access(program, os.X_OK):
        return f"the program {program} is not executable by this user", f"chmod a+rx {program}"
    return None
