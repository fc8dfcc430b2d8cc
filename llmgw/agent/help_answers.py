"""The agent's answers to `ReadEngineHelp`: this node's engines, asked in a thread and stopped with the agent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from llmgw.agent.engine_help import HelpError, ask_engine
from llmgw.config.agent import AgentConfig
from llmgw.engines import registry
from llmgw.engines.base import inherited_env
from llmgw.engines.offers import program_problem
from llmgw.messages.agent import EngineHelp


class HelpAnswers:
    """Asks the engines that a node is configured to run.

    `base_env` is the agent's own environment; `become` is whom engines run as, as in `run_program` (None: the
    agent itself).
    """

    def __init__(
        self, config: AgentConfig, base_env: Mapping[str, str], become: Mapping[str, Any] | None = None
    ) -> None:
        self._config = config
        self._base_env = dict(base_env)
        self._become = become

    async def __call__(self, request_id: str, engine: str) -> EngineHelp:
        """The engine's texts, or a sentence in `error`. When it is cancelled the program is killed."""
        stop = threading.Event()
        try:
            return await asyncio.to_thread(self._ask, request_id, engine, stop)
        finally:
            stop.set()

    def _ask(self, request_id: str, engine: str, stop: threading.Event) -> EngineHelp:
        try:
            adapter = registry.adapter(engine)
        except ValueError as exc:
            return EngineHelp(request_id=request_id, engine=engine, error=str(exc))
        if not adapter.offered(self._config):
            error = f"this node is not configured to run {engine}; set engines.{engine} in its agent.yaml"
            return EngineHelp(request_id=request_id, engine=engine, error=error)
        problem = program_problem(adapter, self._config)
        if problem is not None:
            return EngineHelp(request_id=request_id, engine=engine, error=problem)
        # As its shards run; the simulated engine is llmgw itself and runs where the agent does.
        env = self._base_env if engine == "sim" else inherited_env(self._base_env)
        try:
            texts = ask_engine(adapter, adapter.program(self._config), env, become=self._become, stop=stop)
        except HelpError as exc:
            return EngineHelp(request_id=request_id, engine=engine, error=str(exc))
        return EngineHelp(
            request_id=request_id,
            engine=engine,
            text=texts.text,
            version=texts.version,
            sidecars=texts.sidecars,
        )
