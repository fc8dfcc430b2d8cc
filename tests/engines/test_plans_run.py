"""The planned command lines, run: what the adapters write is what the programs understand."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import httpx
import openai
import pytest

from llmgw.config.agent import Engines, LlamacppEngine
from llmgw.engines.base import HttpCheck, LaunchPlan
from llmgw.engines.registry import adapter
from tests.engines.running import ENGINE, ROOT, Program, http, program, until
from tests.engines.specs import context, spec
from tests.ports import free_port

HERE = Path(__file__).parent


def passes(check: HttpCheck | None, port: int) -> bool:
    """What the supervisor asks: 2xx, and JSON without an error."""
    assert check is not None
    try:
        answer = http.request(
            check.method, f"http://127.0.0.1:{port}{check.path}", content=check.body, headers=check.headers
        )
    except httpx.TransportError:
        return False
    return answer.is_success and "error" not in json.loads(answer.content)


def comes_up(plan: LaunchPlan, running: Program, port: int) -> None:
    def loaded() -> bool:
        assert running.process.poll() is None, running.output + running.errors
        return passes(plan.load, port)

    until(loaded, "the load check", 30)
    assert passes(plan.readiness, port)


@pytest.mark.parametrize("task", ["chat", "completion", "embedding"])
def test_a_planned_simulated_engine_becomes_ready(task: str) -> None:
    shard = spec(task=task, args=["--load-s", "0.2"])
    port = free_port()
    base = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    plan = adapter("sim").plan(shard, context(shard, address="127.0.0.1", http_port=port, base_env=base))
    with program([*ENGINE, *plan.engine.argv[5:]], plan.engine.env) as running:
        comes_up(plan, running, port)
        running.terminate()
        assert running.wait_exit(5) == 0


@pytest.mark.real_engine
def test_llama_cpp_answers_a_real_prompt_streamed_or_not(llama_python: str, tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    subprocess.run([llama_python, str(HERE / "tiny_gguf.py"), str(model)], check=True)
    server = tmp_path / "llama-server"
    server.write_text(f'#!/bin/sh\nexec "{llama_python}" "{HERE / "llama_server.py"}" "$@"\n')
    server.chmod(0o755)

    shard = spec(engine="llamacpp", source=str(model), gpus=[], args=["--ctx-size", "1024"])
    engines = Engines(llamacpp=LlamacppEngine(bin=str(server), parallel=2))
    port = free_port()
    base = {"PATH": os.environ["PATH"]}
    node = context(shard, engines, address="127.0.0.1", http_port=port, base_env=base)
    assert adapter("llamacpp").problems(shard, node) == []
    plan = adapter("llamacpp").plan(shard, node)

    with program(plan.engine.argv, plan.engine.env) as running:
        comes_up(plan, running, port)
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=90)
        whole = client.chat.completions.create(
            model="small",
            messages=[{"role": "user", "content": "Where is the sun?"}],
            max_tokens=24,
            temperature=0,
        )
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 24
        text = whole.choices[0].message.content or ""
        assert len(text.split()) == 24

        chunks = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Where is the sun?"}],
            max_tokens=24,
            temperature=0,
            stream=True,
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(pieces) == text
        assert len([piece for piece in pieces if piece]) > 5

        details = http.get(f"http://127.0.0.1:{port}/v1/models").json()["data"][0]
        assert details["meta"]["n_ctx"] == 1024, "each request may use the whole context"
        assert "llamacpp:prompt_tokens_total" in http.get(f"http://127.0.0.1:{port}/metrics").text
        running.terminate()
        assert running.wait_exit(15) == 0
