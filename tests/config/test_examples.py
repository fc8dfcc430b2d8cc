"""The files in examples/ load, and show every key: an example that rots is worse than none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmgw.config.agent import AgentConfig
from llmgw.config.base import Model
from llmgw.config.load import load_agent_config, load_server_config
from llmgw.config.schema import Path as KeyPath
from llmgw.config.schema import key_paths, meanings, shape_at
from llmgw.config.server import Cors, ServerConfig
from llmgw.config.tracing import Tracing
from llmgw.config.yaml_lines import Node, read_yaml

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def uncommented(path: Path) -> str:
    """The file with every `#key:` line made a line; `# prose` stays."""
    return re.sub(r"^(\s*)#(?=[a-z0-9_]+:|- )", r"\1", path.read_text(), flags=re.MULTILINE)


def written(node: Node, at: KeyPath = ()) -> set[KeyPath]:
    """Every path of keys in a tree; entries of lists are not told apart."""
    found: set[KeyPath] = set()
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            found |= {(*at, key)} | written(child, (*at, key))
    elif isinstance(node.value, list):
        for item in node.value:
            found |= written(item, at)
    return found


def test_every_example_loads_as_it_is() -> None:
    server = load_server_config(EXAMPLES / "server.yaml", {})
    agent = load_agent_config(EXAMPLES / "agent.yaml", {})
    laptop = load_server_config(EXAMPLES / "laptop.yaml", {})
    assert sorted(path.name for path in EXAMPLES.glob("*.yaml")) == ["agent.yaml", "laptop.yaml", "server.yaml"]
    assert agent.engines.vllm is not None
    assert laptop.models[0].endpoints
    several, quantised, embedding, pair, static = server.models
    assert (several.profiles[0].engine, several.profiles[0].nodes) == ("vllm", 2)
    assert quantised.profiles[0].engine == "llamacpp"
    assert (embedding.task, pair.profiles[0].engine) == ("embedding", "sglang")
    assert len(static.endpoints) == 2


@pytest.mark.parametrize(("name", "model"), [("server.yaml", ServerConfig), ("agent.yaml", AgentConfig)])
def test_an_example_shows_every_key_and_loads_with_all_of_them(
    tmp_path: Path, name: str, model: type[Model]
) -> None:
    text = uncommented(EXAMPLES / name)
    root = read_yaml(text.encode())
    assert root is not None
    shown = written(root)
    missing = [path for path in key_paths(model) if tuple(step.removesuffix("[]") for step in path) not in shown]
    assert not missing, f"{name} does not show {missing}"
    (tmp_path / name).write_text(text)
    (load_server_config if model is ServerConfig else load_agent_config)(tmp_path / name, {})


def test_the_defaults_that_an_example_shows_are_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(uncommented(EXAMPLES / "agent.yaml"))
    full = load_agent_config(tmp_path / "agent.yaml", {})
    bare = load_agent_config(
        None, {"LLMGW_AGENT__SERVER": "https://gw:1", "LLMGW_AGENT__ENGINES__LLAMACPP": "{}"}
    )
    assert full.supervisor == bare.supervisor
    assert full.engines.llamacpp == bare.engines.llamacpp
    assert (full.heartbeat_interval, full.reconnect_base, full.reconnect_max) == (
        *(bare.heartbeat_interval, bare.reconnect_base, bare.reconnect_max),
    )
    assert full.discovery.model_copy(update={"skip_gpus": []}) == bare.discovery
    (tmp_path / "server.yaml").write_text(uncommented(EXAMPLES / "server.yaml"))
    server, empty = load_server_config(tmp_path / "server.yaml", {}), load_server_config(None, {})
    # How many workers are the default depends on the machine, and some keys have none to show.
    without = {"workers": None, "trusted_proxies": [], "cors": Cors(), "tracing": Tracing()}
    assert (server.liveness, server.router.model_copy(update=without)) == (empty.liveness, empty.router)


def test_the_defaults_are_those_that_operators_know() -> None:
    environ = {"LLMGW_AGENT__SERVER": "https://gw:1", "LLMGW_AGENT__FABRICS": "[{name: ib-a}]"}
    agent = load_agent_config(None, {**environ, "LLMGW_AGENT__ENGINES__VLLM": "{}"})
    assert (agent.supervisor.log_lines, agent.supervisor.stop_timeout) == (512, 60.0)
    assert agent.supervisor.health_interval == 2.0
    assert agent.fabrics[0].hcas == ["mlx5_0", "mlx5_1"]
    assert agent.engines.vllm is not None
    assert agent.engines.vllm.launch_mode == "mp"


@pytest.mark.parametrize("model", [ServerConfig, AgentConfig])
def test_every_key_says_what_it_means(model: type[Model]) -> None:
    silent = []
    for path in key_paths(model):
        plain: KeyPath = ()
        for step in path[:-1]:
            plain += (step.removesuffix("[]"), 0) if step.endswith("[]") else (step,)
        group = shape_at(model, plain)
        assert group is not None
        assert group.model is not None
        if not meanings(group.model).get(path[-1]):
            silent.append(".".join(path))
    assert not silent
