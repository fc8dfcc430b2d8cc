"""Configuration files through the loader: what is accepted, and the sentence for everything that is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.config.errors import ConfigError, SentenceError
from llmgw.config.load import first_there, load_agent_config, load_server_config

Refuse = Callable[..., str]


@pytest.fixture
def refuse_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Loads a text as `server.yaml`, which must be refused, and returns the sentences."""
    monkeypatch.chdir(tmp_path)

    def refuse(text: str | bytes, **environ: str) -> str:
        path = Path("server.yaml")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ConfigError) as caught:
            load_server_config(path, environ)
        return str(caught.value)

    return refuse


@pytest.fixture
def refuse_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """The same for `agent.yaml`."""
    monkeypatch.chdir(tmp_path)

    def refuse(text: str, **environ: str) -> str:
        path = Path("agent.yaml")
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_agent_config(path, environ)
        return str(caught.value)

    return refuse


def test_the_server_needs_no_file() -> None:
    config = load_server_config(None, {})
    assert config.listen == "127.0.0.1:8080"
    assert config.models == []


def test_a_folder_that_its_user_may_not_enter_has_no_configuration_and_a_default_place_that_is_closed_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `sudo -u llmgw llmgw server backup FILE` in root's folder was a defect with a traceback.
    def exists(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    closed = tmp_path / "etc" / "server.yaml"
    there = tmp_path / "server.yaml"
    there.touch()
    assert first_there([Path("server.yaml"), closed, there]) == there
    monkeypatch.setattr(Path, "exists", exists)
    assert first_there([Path("server.yaml"), closed, there]) == closed
    assert first_there([Path("server.yaml")]) is None


def test_an_agent_without_a_server_is_told_both_ways_to_name_it() -> None:
    with pytest.raises(ConfigError) as caught:
        load_agent_config(None, {})
    assert str(caught.value) == (
        "no file, and no environment variable LLMGW_AGENT__SERVER: server: missing; "
        "add it: the agents' endpoint, `https://host:port`"
    )


def test_a_configuration_error_is_a_sentence_error_that_exits_with_1() -> None:
    assert issubclass(ConfigError, SentenceError)
    assert ConfigError.exit_code == 1


def test_text_keys_keep_what_was_written_and_numbers_become_numbers(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(
        "models:\n"
        "  - name: 405\n"
        "    aliases: [1.10, no, 12:30, 2024-01-01]\n"
        "    source: org/name\n"
        "    profiles:\n"
        "      - engine: vllm\n"
        "        gpus_per_node: 8\n"
        "        stop_first: yes\n"
        "        load_timeout: 90\n"
        "        args: [--port, 8000, --ratio, 0.90]\n"
        "        env: {FLAG: true, ZERO: 007}\n"
    )
    (model,) = load_server_config(path, {}).models
    assert model.served_names == ["405", "1.10", "no", "12:30", "2024-01-01"]
    (profile,) = model.profiles
    assert (profile.gpus_per_node, profile.stop_first, profile.load_timeout) == (8, True, 90.0)
    assert profile.args == ["--port", "8000", "--ratio", "0.90"]
    assert profile.env == {"FLAG": "true", "ZERO": "007"}


def test_gpus_to_skip_are_indexes_or_uuids(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("server: https://gw:8443\ndiscovery: {skip_gpus: [0, 7, GPU-5f2d]}\n")
    assert load_agent_config(path, {}).discovery.skip_gpus == [0, 7, "GPU-5f2d"]


def test_groups_of_which_every_line_is_commented_out_are_defaults(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("listen: 127.0.0.1:9000\nliveness:\n  # settle: 3s\nmodels:\n")
    assert load_server_config(path, {}).liveness.settle == 45.0


def test_anchors_and_merge_keys_share_what_profiles_have_in_common(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(
        "models:\n"
        "  - name: a\n"
        "    profiles:\n"
        "      - &base {name: one, engine: sim, replicas: 3}\n"
        "      - {<<: *base, name: two}\n"
    )
    (model,) = load_server_config(path, {}).models
    assert [(profile.name, profile.replicas) for profile in model.profiles] == [("one", 3), ("two", 3)]


MODEL = "models:\n  - name: a\n    source: org/a\n    profiles:\n      - engine: vllm\n"

SERVER_SENTENCES = {
    "a key with a slip in it": (
        MODEL + "        gpus_per_nodes: 8\n",
        "server.yaml line 6: models[0].profiles[0].gpus_per_nodes: unknown key; did you mean gpus_per_node?",
    ),
    "a key with dashes": (
        MODEL + "        gpus-per-node: 8\n",
        "server.yaml line 6: models[0].profiles[0].gpus-per-node: unknown key; did you mean gpus_per_node?",
    ),
    "a key of another group": (
        "settle: 3s\n",
        "server.yaml line 1: settle: unknown key here; it belongs to liveness",
    ),
    "a key that is like no other": (
        "admin:\n  zzz: 1\n",
        "server.yaml line 2: admin.zzz: unknown key; the keys here are listen, tls",
    ),
    "a word for a number": (
        MODEL + "        nodes: eight\n",
        "server.yaml line 6: models[0].profiles[0].nodes: must be a whole number, got 'eight'",
    ),
    "a number with a fraction": (
        "router:\n  connections_max: 20.5\n",
        "server.yaml line 2: router.connections_max: must be a whole number, got 20.5",
    ),
    "a number below its least": (
        MODEL + "        nodes: 0\n",
        "server.yaml line 6: models[0].profiles[0].nodes: must be at least 1, got 0",
    ),
    "a number above its most": (
        MODEL + "        gpus_per_node: 65\n",
        "server.yaml line 6: models[0].profiles[0].gpus_per_node: must be at most 64, got 65",
    ),
    "a duration that is none": (
        "liveness:\n  settle: soon\n",
        "server.yaml line 2: liveness.settle: 'soon' is not a duration; write for example 5s, 2m or 1h30m",
    ),
    "a duration that is too short": (
        "router: {connect_timeout: 0s}\n",
        "server.yaml line 1: router.connect_timeout: must be more than 0s, got 0s",
    ),
    "something else for true or false": (
        MODEL + "        stop_first: maybe\n",
        "server.yaml line 6: models[0].profiles[0].stop_first: must be true or false, got 'maybe'",
    ),
    "an engine that does not exist": (
        "models:\n  - name: a\n    profiles:\n      - engine: vlm\n",
        "server.yaml line 4: models[0].profiles[0].engine: must be vllm, sglang, llamacpp or sim, got 'vlm'; "
        "did you mean vllm?",
    ),
    "a group for text": (
        "state: {path: x}\n",
        "server.yaml line 1: state: must be text, got a group of keys",
    ),
    "text for a group": (
        "router: fast\n",
        "server.yaml line 1: router: must be a group of keys, got 'fast'",
    ),
    "text for a list": (
        "models: a\n",
        "server.yaml line 1: models: must be a list, one entry a line after '- ' or [a, b], got 'a'",
    ),
    "a list for a map": (
        MODEL + "        env: [A=1]\n",
        "server.yaml line 6: models[0].profiles[0].env: must be names with values, one `NAME: value` a line, "
        "got a list",
    ),
    "a variable without a value": (
        MODEL + "        env:\n          A:\n",
        "server.yaml line 7: models[0].profiles[0].env.A: must be text, got nothing",
    ),
    "a variable that cannot be one": (
        MODEL + "        env:\n          a b: 1\n",
        "server.yaml line 7: models[0].profiles[0].env.a b: 'a b' is not an environment variable name; "
        "use letters, digits and '_'",
    ),
    "a key that must be there": (
        "models:\n  - name: a\n    source: org/a\n    profiles:\n      - nodes: 1\n",
        "server.yaml line 5: models[0].profiles[0].engine: missing; add it: the engine that runs it",
    ),
    "an address without a port": (
        "listen: 127.0.0.1\n",
        "server.yaml line 1: listen: '127.0.0.1' is not host:port; write for example 127.0.0.1:8080 "
        "or [::1]:8080",
    ),
    "an address without brackets": (
        'listen: "::1:8080"\n',
        "server.yaml line 1: listen: '::1:8080' is not host:port: put the IPv6 address into brackets, "
        "like [::1]:8080",
    ),
    "an auth that is not known": (
        "auth: basic\n",
        "server.yaml line 1: auth: 'basic' is not known; write auth: keys to ask everybody for an API key, "
        "auth: none to ask nobody, or leave it out",
    ),
    "the admin API in the clear": (
        "admin:\n  listen: 10.0.0.1:8081\n",
        "server.yaml line 2: admin.listen: 10.0.0.1:8081 is beyond loopback without admin.tls; "
        "tokens would travel "
        "in the clear: set admin.tls.cert and admin.tls.key, or listen on 127.0.0.1",
    ),
    "a replica that is failed before it leaves the rotation": (
        "liveness:\n  port_down_fail: 5s\n",
        "server.yaml line 2: liveness.port_down_fail: 5 s is shorter than port_down_suspend (10 s); a replica "
        "leaves the rotation before it is failed: make it longer",
    ),
    "TLS for agents that is left empty": (
        "agents:\n  tls:\n",
        "server.yaml line 2: agents.tls: empty; set ca, cert, key below it, or remove it",
    ),
    "half of what renews": (
        "agents:\n  tls:\n    ca: a\n    cert: b\n    key: c\n    renewal_cert: d\n",
        "server.yaml line 6: agents.tls.renewal_cert: needs renewal_key beside it; set both, or neither",
    ),
    "limits in the wrong order": (
        "liveness:\n  lost_after: 10m\n  unreachable_limit: 5m\n",
        "server.yaml line 3: liveness.unreachable_limit: must not be below liveness.lost_after; raise it",
    ),
    "a model that nothing runs": (
        "models:\n  - name: a\n",
        "server.yaml line 2: models[0]: model 'a' has neither profiles nor endpoints; give it one",
    ),
    "a model without a source": (
        "models:\n  - name: a\n    profiles: [{engine: vllm}]\n",
        "server.yaml line 2: models[0].source: model 'a' has no source, which profile 'default' "
        "(vllm) must load; "
        "set source to org/name, a path or a URL",
    ),
    "two profiles of one name": (
        MODEL + "      - engine: vllm\n",
        "server.yaml line 6: models[0].profiles[1].name: model 'a' has two profiles named 'default'; rename one",
    ),
    "parallelism that does not come out": (
        MODEL + "        nodes: 2\n        tensor_parallel: 3\n",
        "server.yaml line 7: models[0].profiles[0].tensor_parallel: tensor_parallel 3 × "
        "pipeline_parallel 1 is not "
        "nodes 2 × gpus_per_node 1 = 2; change one of them",
    ),
    "stages that do not divide": (
        MODEL + "        gpus_per_node: 8\n        pipeline_parallel: 3\n",
        "server.yaml line 7: models[0].profiles[0].pipeline_parallel: 3 does not divide the 8 GPUs of a replica; "
        "choose a divisor",
    ),
    "several nodes without GPUs": (
        MODEL + "        nodes: 2\n        gpus_per_node: 0\n",
        "server.yaml line 7: models[0].profiles[0].gpus_per_node: must be at least 1 when nodes is above 1; "
        "a replica over several nodes needs GPUs",
    ),
    "an alias that is another model's name": (
        MODEL + "  - name: b\n    aliases: [c, a]\n    endpoints: [{url: http://h}]\n",
        "server.yaml line 7: models[1].aliases[1]: the name 'a' belongs to both 'a' and 'b'; "
        "names and aliases are unique over the catalog, rename one",
    ),
    "a name that cannot be one": (
        "models:\n  - name: a b\n    endpoints: [{url: http://h}]\n",
        "server.yaml line 2: models[0].name: 'a b' is not a model name; it begins with a letter or "
        "digit and goes on "
        "with letters, digits and . _ : / @ + -, at most 200",
    ),
    "an endpoint that is no URL": (
        "models:\n  - name: a\n    endpoints: [{url: '10.0.0.1:80'}]\n",
        "server.yaml line 3: models[0].endpoints[0].url: '10.0.0.1:80' is not a URL like http://10.0.0.5:8000 "
        "or https://host/prefix",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), SERVER_SENTENCES.values(), ids=SERVER_SENTENCES)
def test_server_yaml_is_refused_with_file_line_key_and_remedy(
    refuse_server: Refuse, text: str, sentence: str
) -> None:
    assert refuse_server(text) == sentence


AGENT_SENTENCES = {
    "an adapter under two fabrics": (
        "fabrics:\n  - name: ib-a\n  - name: ib-b\n    hcas:\n      - mlx5_2\n      - mlx5_1:1\n",
        "agent.yaml line 7: fabrics[1].hcas[1]: adapter mlx5_1 is under two fabrics, 'ib-a' and 'ib-b'; "
        "it is cabled to one, remove it from the other",
    ),
    "a port under two fabrics": (
        "fabrics:\n  - {name: ib-a, hcas: [mlx4_0:1]}\n  - {name: ib-b, hcas: [mlx4_0:2, mlx4_0:1]}\n",
        "agent.yaml line 4: fabrics[1].hcas[1]: port mlx4_0:1 is under two fabrics, 'ib-a' and 'ib-b'; "
        "it is cabled to one, remove it from the other",
    ),
    "an adapter under one fabric and its port under another": (
        "fabrics:\n  - {name: ib-a, hcas: [mlx4_0:2]}\n  - {name: ib-b, hcas: [mlx4_0]}\n",
        "agent.yaml line 4: fabrics[1].hcas[0]: adapter mlx4_0 is under two fabrics, 'ib-a' and 'ib-b'; "
        "it is cabled to one, remove it from the other",
    ),
    "a port in a spelling that would hide it from the others": (
        "fabrics:\n  - {name: ib-a, hcas: [mlx4_0:1]}\n  - {name: ib-b, hcas: [mlx4_0:01]}\n",
        "agent.yaml line 4: fabrics[1].hcas[0]: 'mlx4_0:01' is not an adapter name; write for example "
        "mlx5_0 or mlx5_0:1",
    ),
    "a fabric declared twice": (
        "fabrics:\n  - name: ib-a\n    hcas: [mlx5_0]\n  - name: ib-a\n    hcas: [mlx5_1]\n",
        "agent.yaml line 5: fabrics[1].name: fabric 'ib-a' is declared twice; merge its hcas",
    ),
    "an adapter that cannot be one": (
        "fabrics:\n  - name: ib-a\n    hcas: [mlx5_0, ../x]\n",
        "agent.yaml line 4: fabrics[0].hcas[1]: '../x' is not an adapter name; write for example "
        "mlx5_0 or mlx5_0:1",
    ),
    "a fabric without adapters": (
        "fabrics:\n  - {name: ib-a, hcas: []}\n",
        "agent.yaml line 3: fabrics[0].hcas: must have at least 1 entry, has 0",
    ),
    "an engine that is named and left empty": (
        "engines:\n  vllm:\n",
        "agent.yaml line 3: engines.vllm: empty; write {} after it for all its defaults, or remove it",
    ),
    "a launch mode that does not exist": (
        "engines: {vllm: {launch_mode: rays}}\n",
        "agent.yaml line 2: engines.vllm.launch_mode: must be mp or ray, got 'rays'; did you mean ray?",
    ),
    "waits in the wrong order": (
        "reconnect_max: 500ms\n",
        "agent.yaml line 2: reconnect_max: must not be below reconnect_base; raise it",
    ),
    "an address that nobody reaches": (
        "mgmt_addr: 0.0.0.0\n",
        "agent.yaml line 2: mgmt_addr: '0.0.0.0' is not an address that other nodes can reach; use "
        "a unicast address",
    ),
    "a GPU that is a list": (
        "discovery: {skip_gpus: [[0]]}\n",
        "agent.yaml line 2: discovery.skip_gpus[0]: must be text, got a list",
    ),
    "a range of ports the wrong way round": (
        "supervisor: {port_range: 3000-2000}\n",
        "agent.yaml line 2: supervisor.port_range: '3000-2000' is not a range of ports like 21000-21999, "
        "from 1024 to 65535",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), AGENT_SENTENCES.values(), ids=AGENT_SENTENCES)
def test_agent_yaml_is_refused_with_file_line_key_and_remedy(
    refuse_agent: Refuse, text: str, sentence: str
) -> None:
    assert refuse_agent("server: https://gw:8443\n" + text) == sentence


def test_a_server_address_that_is_not_https_is_refused(refuse_agent: Refuse) -> None:
    assert refuse_agent("server: http://gw:8443\n") == (
        "agent.yaml line 1: server: 'http://gw:8443' is not an address like https://gateway.example.org:8443"
    )


def test_every_mistake_is_told_at_once_in_the_order_of_the_lines(refuse_server: Refuse) -> None:
    told = refuse_server("state: [x]\nlistn: a\nadmin:\n  listen: 3\nliveness: {settle: x}\n")
    assert [line.split(":")[0] for line in told.splitlines()] == [
        f"server.yaml line {line}" for line in (1, 2, 4, 5)
    ]


def test_a_thousand_mistakes_do_not_fill_the_screen(refuse_server: Refuse) -> None:
    lines = refuse_server("".join(f"key{number}: 1\n" for number in range(1000))).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "and 980 more; mend these first"


def test_a_sentence_stays_on_its_line_whatever_the_key_and_the_value_are(refuse_server: Refuse) -> None:
    told = refuse_server(f'"a\\nb": 1\nlisten: "{"x" * 100_000}"\n')
    first, second = told.splitlines()
    assert first.startswith(r"server.yaml line 1: a\nb: unknown key")
    assert len(second) <= 800


def test_a_password_in_a_url_is_not_repeated(refuse_server: Refuse) -> None:
    told = refuse_server("models:\n  - name: a\n    endpoints: [{url: 'http://u:s3cret@h'}]\n")
    assert "s3cret" not in told
    assert "api_key_file" in told


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^/nowhere/server.yaml: there is no such file; .*--config$"):
        load_server_config(Path("/nowhere/server.yaml"), {})


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder; give the path of a file in it"):
        load_server_config(tmp_path, {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("listen: 127.0.0.1:1\n")
    path.chmod(0)
    with pytest.raises(ConfigError, match="this user may not read it; change its owner or mode"):
        load_server_config(path, {})


def test_no_permission_is_a_sentence_for_root_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(ConfigError, match="this user may not read it; change its owner or mode"):
        load_server_config(tmp_path / "server.yaml", {})


def test_a_device_without_an_end_is_not_read_to_the_end() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: larger than 4 MiB"):
        load_server_config(Path("/dev/zero"), {})


@pytest.mark.parametrize(
    ("listen", "admin"),
    [
        ("127.0.0.1:8081", "127.0.0.1:8081"),
        ("0.0.0.0:8081", "127.0.0.1:8081"),
        ("'[::]:8081'", "127.0.0.1:8081"),
        ("localhost:8081", "127.0.0.1:8081"),
    ],
)
def test_two_listeners_on_one_port_are_told_before_anything_listens(
    refuse_server: Refuse, listen: str, admin: str
) -> None:
    said = refuse_server(f"listen: {listen}\nadmin:\n  listen: {admin}\n")
    assert "server.yaml line 3: admin.listen" in said
    assert "are one port" in said


def test_listeners_on_addresses_of_their_own_may_share_a_port(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    for text in (
        "listen: 127.0.0.2:8081\nadmin:\n  listen: 127.0.0.1:8081\n",
        "listen: 127.0.0.1:0\nadmin:\n  listen: 127.0.0.1:0\n",
        "listen: 127.0.0.1:8443\nagents:\n  listen: 0.0.0.0:8443\n",  # no tls, so no agents
    ):
        path.write_text(text)
        load_server_config(path, {})
