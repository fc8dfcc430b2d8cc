"""The agent's answers to `ReadEngineHelp`: this node's engines, asked in a thread and stopped with the agent."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from llmgw.agent.engine_help import HelpError, ask_engine
from llmgw.config.agent import AgentConfig
from llmgw.engines import registry
from llmgw.engines.base import inherited_env
from llmgw.engines.offers import program_problem
from llmgw.hardware.engine_user import Account
from llmgw.messages.agent import EngineHelp


class HelpAnswers:
    """Asks the engines that a node is configured to run, as whom its shards run.

    `base_env` is the agent's own environment, `account` whom engines run as (None: the agent's own user),
    `refusal` why nobody can be found whom they may run as.
    """

    def __init__(
        self,
        config: AgentConfig,
        base_env: Mapping[str, str],
        account: Account | None = None,
        refusal: str | None = None,
    ) -> None:
        self._config = config
        self._base_env = dict(base_env)
        self._account = account
        self._refusal = refusal

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
        problem = self._refusal or program_problem(adapter, self._config)
        if problem is not None:
            return EngineHelp(request_id=request_id, engine=engine, error=problem)
        # As its shards run; the simulated engine is llmgw itself and runs where the agent does.
        env = self._base_env if engine == "sim" else inherited_env(self._base_env)
        become = None
        if self._account is not None:
            become = self._account.popen_arguments()
            env = {**env, "HOME": self._account.home_or(Path(tempfile.gettempdir()))}
        try:
            texts = ask_engine(adapter, adapter.program(self._config), env, become=become, stop=stop)
        except HelpError as exc:
            return EngineHelp(request_id=request_id, engine=engine, error=str(exc))
        return EngineHelp(
            request_id=request_id,
            engine=engine,
            text=texts.text,
            version=texts.version,
            sidecars=texts.sidecars,
        )
