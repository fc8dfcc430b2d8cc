"""The main job: clients of language models are served by the fleet, through the gateway."""

from __future__ import annotations

import json
import shutil
import subprocess

import httpx
import openai
import pytest

from tests.endtoend.conftest import RunningFleet

MODELS = ["demo/big", "demo/small"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]


@pytest.fixture(scope="module")
def client(fleet: RunningFleet) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fleet.demo.api}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("model", MODELS)
def test_curl_streams_from_each_model(fleet: RunningFleet, model: str) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    done = subprocess.run(
        [curl, "-sN", f"{fleet.demo.api}/v1/chat/completions", "--json", json.dumps(body)],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    events = [line for line in done.stdout.splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert len(events) >= 5


@pytest.mark.parametrize("model", [*MODELS, "big", "small"])
def test_the_openai_client_works_unchanged(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=6
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    parts = [
        part.choices[0].delta.content or ""
        for part in client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=6, stream=True
        )
        if part.choices
    ]
    assert "".join(parts)


@pytest.mark.parametrize("stream", [False, True])
def test_tools_in_the_body_reach_the_engine_untouched(client: openai.OpenAI, stream: bool) -> None:
    arguments = {
        "model": "demo/small",
        "messages": [{"role": "user", "content": "the weather in Oslo?"}],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }
    if stream:
        names = [
            call.function.name
            for part in client.chat.completions.create(**arguments, stream=True)  # type: ignore[call-overload]
            if part.choices
            for call in part.choices[0].delta.tool_calls or []
            if call.function is not None and call.function.name
        ]
    else:
        answer = client.chat.completions.create(**arguments)  # type: ignore[call-overload]
        names = [call.function.name for call in answer.choices[0].message.tool_calls or []]
    assert names == ["weather"]


def test_models_are_listed_with_their_aliases(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"demo/big", "big", "demo/small", "small"}


def test_embeddings_pass_through(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="demo/small", input=["one", "two"])
    assert len(answer.data) == 2


def test_an_unknown_model_is_404_in_openai_s_shape_with_the_names_that_exist(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
    assert "demo/big" in str(caught.value)
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "says"),
    [(b"not json", "JSON"), (b"{}", "model"), (b'{"model": 7}', "model"), (b"", "JSON"), (b"[1]", "")],
)
def test_a_body_that_cannot_be_meant_is_a_sentence(fleet: RunningFleet, body: bytes, says: str) -> None:
    answer = httpx.post(
        f"{fleet.demo.api}/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert says in error["message"]


def test_only_leaders_listen(fleet: RunningFleet) -> None:
    from llmgw.sim.scenarios.judge import listening_shards

    replicas = fleet.ready("demo/big")
    listening = listening_shards(replicas)
    assert listening == {
        shard["shard_id"]: shard["rank"] == 0 for replica in replicas for shard in replica["shards"]
    }


def test_each_two_node_replica_sits_on_one_fabric(fleet: RunningFleet) -> None:
    fabrics = sorted(replica["fabric"] for replica in fleet.ready("demo/big"))
    assert fabrics == ["ib-a", "ib-b"]
    for replica in fleet.ready("demo/big"):
        expected = {"ib-a": {"node01", "node02"}, "ib-b": {"node03", "node04"}}[replica["fabric"]]
        assert set(replica["nodes"]) == expected
