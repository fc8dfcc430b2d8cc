"""One quick engine for the tests that only ask questions."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.engines.running import Program, sim_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Program]:
    """A simulated engine at a thousand tokens a second. Tests leave no fault behind in it."""
    args = [
        "--served-name",
        "tiny",
        "--served-name",
        "small",
        "--tokens-per-s",
        "1000",
        "--max-model-len",
        "2000",
    ]
    with sim_engine(*args, LLMGW_SHARD="r1-0") as running:
        running.url()
        yield running


@pytest.fixture(scope="session")
def client(engine: Program) -> openai.OpenAI:
    """The client that most people use."""
    return openai.OpenAI(base_url=f"{engine.url()}/v1", api_key="none", max_retries=0, timeout=40)
