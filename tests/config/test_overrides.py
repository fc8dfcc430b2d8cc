"""Environment variables override keys, and what cannot be one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.config.errors import ConfigError
from llmgw.config.load import load_agent_config, load_server_config

SERVER = {"LLMGW_AGENT__SERVER": "https://gw:8443"}


def refused(**environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_agent_config(None, {**SERVER, **environ})
    return str(caught.value)


def test_a_variable_overrides_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("listen: 127.0.0.1:1\nrouter: {connections_max: 100}\n")
    config = load_server_config(
        path, {"LLMGW_SERVER__LISTEN": "[::1]:8080", "LLMGW_SERVER__ROUTER__DRAIN_GRACE": "3s"}
    )
    assert config.listen == "[::1]:8080"
    assert (config.router.connections_max, config.router.drain_grace) == (100, 3.0)


def test_variables_reach_groups_that_the_file_does_not_have() -> None:
    config = load_agent_config(None, {**SERVER, "LLMGW_AGENT__TLS__CA": "/ca", "LLMGW_AGENT__TLS__KEY": "/key"})
    assert (config.tls.ca, config.tls.cert, config.tls.key) == ("/ca", "/etc/llmgw/agent.pem", "/key")


def test_lists_and_groups_are_yaml_text() -> None:
    config = load_agent_config(
        None,
        {
            **SERVER,
            "LLMGW_AGENT__FABRICS": "[{name: ib-a, hcas: [mlx5_4]}]",
            "LLMGW_AGENT__ENGINES__VLLM": "{}",
            "LLMGW_AGENT__DISCOVERY": "{prefer_nvml: false}",
            "LLMGW_AGENT__DISCOVERY__SKIP_GPUS": "[1, GPU-x]",
        },
    )
    assert config.fabrics[0].hcas == ["mlx5_4"]
    assert config.engines.vllm is not None
    assert config.discovery.prefer_nvml is False
    assert config.discovery.skip_gpus == [1, "GPU-x"]


def test_text_stays_text() -> None:
    config = load_agent_config(
        None, {**SERVER, "LLMGW_AGENT__NODE_ID": "0405", "LLMGW_AGENT__MGMT_INTERFACE": "no"}
    )
    assert (config.node_id, config.mgmt_interface) == ("0405", "no")


def test_an_empty_variable_unsets_a_key_that_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("server: https://gw:8443\nmgmt_addr: 10.0.0.1\n")
    assert load_agent_config(path, {"LLMGW_AGENT__MGMT_ADDR": ""}).mgmt_addr is None


def test_other_variables_of_ours_are_no_overrides() -> None:
    environ = {"LLMGW_CTL_SERVER": "x", "LLMGW_CTL_TOKEN": "x", "LLMGW_SHARD": "x", "LLMGW_SIM_HARDWARE": "x"}
    environ |= {"LLMGW_DEBUG": "1", "LLMGW_SERVERS": "x", "LLMGW_SERVER_LISTEN": "x", "LLMGW_AGENT__LISTEN": "x"}
    assert load_server_config(None, environ) == load_server_config(None, {})


SENTENCES = {
    "a key that does not exist": (
        {"LLMGW_AGENT__TLS__CAA": "/ca"},
        "environment variable LLMGW_AGENT__TLS__CAA: no such key; did you mean ca?",
    ),
    "no key at all": (
        {"LLMGW_AGENT__": "/ca"},
        "environment variable LLMGW_AGENT__: no such key; the keys here are node_id, server, tls, mgmt_addr, "
        "mgmt_interface, heartbeat_interval, reconnect_base, reconnect_max, fabrics, discovery, "
        "engines, supervisor, weights, metrics, release_key, oldest_release",
    ),
    "a key below one value": (
        {"LLMGW_AGENT__NODE_ID__X": "1"},
        "environment variable LLMGW_AGENT__NODE_ID__X: node_id has no keys of its own; set node_id as a whole, "
        "as YAML text",
    ),
    "an entry of a list": (
        {"LLMGW_AGENT__FABRICS__0__NAME": "1"},
        "environment variable LLMGW_AGENT__FABRICS__0__NAME: fabrics has no keys of its own; set "
        "fabrics as a whole, "
        "as YAML text",
    ),
    "a list that is not YAML": (
        {"LLMGW_AGENT__FABRICS": "[{name: ib-a}"},
        "environment variable LLMGW_AGENT__FABRICS: a '[' is opened and never closed, or a ',' is missing; "
        "the value is read as YAML, as in [a, b] or {key: value}",
    ),
    "a word for a number": (
        {"LLMGW_AGENT__SUPERVISOR__LOG_LINES": "ten"},
        "environment variable LLMGW_AGENT__SUPERVISOR__LOG_LINES: supervisor.log_lines: must be a whole number, "
        "got 'ten'",
    ),
    "a mistake inside a list": (
        {"LLMGW_AGENT__FABRICS": "[{name: ib-a, hca: [x]}]"},
        "environment variable LLMGW_AGENT__FABRICS: fabrics[0].hca: unknown key; did you mean hcas?",
    ),
}


@pytest.mark.parametrize(("environ", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_a_variable_that_cannot_be_used_is_named(environ: dict[str, str], sentence: str) -> None:
    assert refused(**environ) == sentence


def test_a_variable_below_something_else_in_the_file_changes_nothing_of_the_complaint(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("server: https://gw:8443\ntls: /etc/llmgw\n")
    with pytest.raises(ConfigError, match=r"line 2: tls: must be a group of keys, got '/etc/llmgw'"):
        load_agent_config(path, {"LLMGW_AGENT__TLS__CA": "/ca"})
