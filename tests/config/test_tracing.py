"""`router.tracing`: mistakes get sentences, secrets stay in their file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from llmgw.config.errors import ConfigError
from llmgw.config.load import load_server_config
from llmgw.config.server import ServerConfig
from llmgw.config.tracing import TracingError, parse_trace_endpoint, read_trace_headers, tracing_problem
from llmgw.server.router_findings import tracing_findings
from llmgw.server.router_process import router_arguments


def refused(tmp_path: Path, tracing: str) -> str:
    path = tmp_path / "server.yaml"
    path.write_text(f"router:\n  tracing: {tracing}\n")
    with pytest.raises(ConfigError) as caught:
        load_server_config(path, {})
    return str(caught.value)


@pytest.mark.parametrize(
    ("tracing", "sentence"),
    [
        ("{endpoint: collector}", "'collector' is not a URL like http://collector:4318"),
        ("{endpoint: 'ftp://collector/x'}", "is not a URL like"),
        ("{endpoint: 'http://collector:x'}", "is not a URL like"),
        ("{endpoint: 'http://c', sample: 2}", "router.tracing.sample: must be at most 1, got 2"),
        ("{headers_file: /x}", "router.tracing.headers_file: is of no use without endpoint"),
        ("{ca: /x}", "router.tracing.ca: is of no use without endpoint"),
    ],
)
def test_a_mistake_is_told_with_its_key(tmp_path: Path, tracing: str, sentence: str) -> None:
    assert sentence in refused(tmp_path, tracing)


def test_a_password_in_the_url_is_refused_and_not_repeated(tmp_path: Path) -> None:
    said = refused(tmp_path, "{endpoint: 'http://me:hunter2@collector'}")
    assert "secrets go into headers_file" in said
    assert "hunter2" not in said


def test_a_bare_address_has_the_path_of_the_protocol_added() -> None:
    assert (
        parse_trace_endpoint("http://c:4318")
        == parse_trace_endpoint("http://c:4318/")
        == "http://c:4318/v1/traces"
    )
    assert parse_trace_endpoint("https://c/otlp/v1/traces") == "https://c/otlp/v1/traces"


def test_headers_are_read_from_a_file_of_the_owners_own(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_text("# for the collector\n\nAuthorization: Bearer abc:def\nX-Scope:team\n")
    path.chmod(0o600)
    assert read_trace_headers(path) == {"authorization": "Bearer abc:def", "x-scope": "team"}
    for text, sentence in [
        ("abcdef\n", "line 1 is no header"),
        ("x: a\x07\n", "line 1"),
        ("x: 1\né: 1\n", "line 2"),
    ]:
        path.write_text(text)
        with pytest.raises(TracingError, match=sentence) as caught:
            read_trace_headers(path)
        assert "abcdef" not in str(caught.value)
    path.chmod(0o640)
    with pytest.raises(TracingError, match="chmod 600"):
        read_trace_headers(path)
    with pytest.raises(TracingError, match="cannot be read"):
        read_trace_headers(tmp_path / "none")
    with pytest.raises(TracingError, match="cannot be read"):
        read_trace_headers(tmp_path)


def test_routers_are_told_where_and_the_secrets_file_but_no_secret() -> None:
    config = ServerConfig.model_validate(
        {"router": {"tracing": {"endpoint": "http://c:4318", "headers_file": "/etc/h", "sample": 0.5}}}
    )
    told = [argument for argument in router_arguments(config) if argument.startswith("--trace")]
    assert told == [
        "--trace-endpoint=http://c:4318/v1/traces",
        "--trace-sample=0.5",
        "--trace-headers-file=/etc/h",
    ]
    assert not any(argument.startswith("--trace") for argument in router_arguments(ServerConfig()))


def test_a_host_that_cannot_trace_is_a_finding_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str, *more: Any) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    config = ServerConfig.model_validate({"router": {"tracing": {"endpoint": "http://c:4318"}}})
    (finding,) = tracing_findings(config.router.tracing)
    assert finding.check == "tracing-impossible"
    assert "pip install 'llmgw[otel]'" in finding.what
    assert tracing_findings(ServerConfig().router.tracing) == []
    assert tracing_problem(None, None) is not None
