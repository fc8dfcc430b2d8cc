"""`llmgw demo --gguf FILE`: a real engine answers a real prompt beside the simulated ones."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import openai
import pytest

from tests.endtoend.conftest import llmgw, until
from tests.endtoend.test_demo import demo, nothing_is_left

ENGINES = Path(__file__).parent.parent / "engines"


@pytest.mark.real_engine
def test_a_gguf_file_is_served_beside_the_simulated_models(llama_python: str, tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    subprocess.run([llama_python, str(ENGINES / "tiny_gguf.py"), str(model)], check=True)
    program = tmp_path / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{llama_python}" "{ENGINES / "llama_server.py"}" "$@"\n')
    program.chmod(0o755)
    with demo(tmp_path / "demo", "--gguf", str(model), "--llama-server", str(program)) as running:
        until(lambda: running.ready("gguf"), 60, lambda: running.output)
        client = openai.OpenAI(base_url=f"{running.api}/v1", api_key="none", max_retries=0, timeout=90)
        asked = {
            "messages": [{"role": "user", "content": "Where is the sun?"}],
            "max_tokens": 16,
            "temperature": 0,
        }
        whole = client.chat.completions.create(model="demo/gguf", **asked)  # type: ignore[call-overload]
        text = whole.choices[0].message.content
        assert len(text.split()) == 16
        chunks = client.chat.completions.create(model="gguf", stream=True, **asked)  # type: ignore[call-overload]
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(pieces) == text
        assert len([piece for piece in pieces if piece]) > 3, "it streams"
        replicas = llmgw("ctl", "replicas", "-o", "json", env={"LLMGW_STATE": running.state})
        assert replicas.returncode == 0, replicas.stderr
        assert '"node04"' in replicas.stdout.partition("demo/gguf")[2]
        assert running.end(signal.SIGINT) == 0
        nothing_is_left(running)


def test_a_gguf_file_or_a_program_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    model = tmp_path / "x.gguf"
    missing = llmgw("demo", "--gguf", str(model))
    assert missing.returncode == 1
    assert missing.stderr == f"error: {model} is not a file; --gguf takes a GGUF file\n"
    model.write_bytes(b"GGUF")
    nowhere = llmgw("demo", "--gguf", str(model), "--llama-server", "no-such-llama-server")
    assert nowhere.returncode == 1
    assert "no-such-llama-server is not a program here" in nowhere.stderr
    assert "--llama-server" in nowhere.stderr
