"""Every command of `ctl`, as a process, against the real admin API over a scripted control plane."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from llmgw.messages.admin_keys import CreateKey, LimitKey, NewKey
from tests.ctl.run_ctl import ctl, ctl_process, environment, sentence_of
from tests.ctl.scripted import TOKEN, ScriptedBackend, ServedAdmin, node


def api_answer(served: ServedAdmin, path: str) -> Any:
    headers = {"authorization": f"Bearer {TOKEN}"}
    return httpx.get(f"{served.url}/api/v1/{path}", headers=headers, trust_env=False, verify=False).json()


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["status"], "server"),
        (["nodes"], "nodes"),
        (["nodes", "node02"], "nodes/node02"),
        (["replicas"], "replicas"),
        (["replicas", "--model", "org/chat-large"], "replicas?model=org/chat-large"),
        (["replicas", "chat-s"], "replicas/chat-small-3c4d"),
        (["fabrics"], "fabrics"),
        (["fabric", "changes", "ib-a", "--limit", "7"], "fabrics/ib-a/changes?limit=7"),
        (["fabric", "map", "ib-a"], "fabrics/ib-a/map"),
        (["models"], "models"),
        (["models", "--on-disk", "--node", "node01"], "weights?node=node01"),
        (["explain", "org/chat-large"], "explain?model=org/chat-large"),
        (["history", "--limit", "3"], "history?limit=3"),
        (["logs", "chat-large", "-n", "2"], "replicas/chat-large-1a2b/logs?lines=2"),
        (["token", "list"], "tokens"),
        (["keys", "list"], "keys"),
        (["catalog", "history"], "catalog/revisions"),
        (["catalog", "show"], "catalog"),
        (["catalog", "show", "1"], "catalog?revision=1"),
    ],
)
def test_json_is_exactly_what_the_api_answers(
    served: ServedAdmin, tmp_path: Path, arguments: list[str], path: str
) -> None:
    done = ctl(*arguments, "-o", "json", home=tmp_path, served=served)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == api_answer(served, path)
    assert done.stderr == ""


def test_a_profile_that_lacks_replicas_is_named_below_those_that_are_there(
    served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path
) -> None:
    lacking = "chat-small/default: 0 of 2 ready: no node has a free GPU"
    assert lacking in ctl("replicas", home=tmp_path, served=served).stdout.splitlines()
    assert lacking not in ctl("replicas", "--model", "chat", home=tmp_path, served=served).stdout
    backend.replicas_known = []
    alone = ctl("replicas", home=tmp_path, served=served).stdout
    assert alone == f"there are no replicas\n\n{lacking}\n"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["status"], ["0.1.0", "settling", "router-1", "WARNING: router-1: it is silent"]),
        (["nodes"], ["node01", "4 of 8 in use", "unreachable (cordoned)", "silent for 40 s", "mlx5_1 is DOWN"]),
        (["nodes", "node02"], ["NVIDIA H200", "mlx5_0:1", "400 Gb/s", "what to do: check the cable"]),
        (
            ["replicas"],
            [
                "chat-large-1a2b",
                "node01, node02",
                "10.0.0.7:21000",
                "weights [#####-----] 50 %",
                "loading weights",
            ],
        ),
        (["replicas", "chat-small-3c4d"], ["fetching", "5.0 GiB of 10.0 GiB", "last line"]),
        (
            ["fabrics"],
            [
                "ib-a",
                "8 of 16 free",
                "400 Gb/s",
                "node02: mlx5_1 is down",
                "0x0c42a10300000501 priority 12 (node02)",
                "PROBLEM: ib-a: the master changed 5 min ago",
            ],
        ),
        (
            ["fabric", "changes", "ib-a"],
            [
                "cable gone",
                "the cable from a[1] to b[2] is gone",
                "2023-11-14",
                "differences now: 1",
                "DIFFERENCE: ",
            ],
        ),
        (["fabric", "map", "ib-a"], ["3 (2 leaf, 1 spine)", "4xHDR", "PROBLEM: 1 cable runs below the rate"]),
        (["fabric", "accept", "ib-a", "--yes"], ["the cabling of ib-a is accepted"]),
        (
            ["models"],
            ["org/chat-large (chat)", "1 of 1 ready", "no node has a free GPU", "https://api.example.org"],
        ),
        (["explain", "chat"], ["1 of 2 ready", "fewer free GPUs", "node01, node02", "exited with code 1"]),
        (
            ["explain", "chat"],
            [
                "runs on node01, node02: 2 leaves (leaf01, leaf02), 1 tier crossed",
                "the next would take node03 and node04 on ib-a: one leaf (leaf02), rails aligned",
                "    rather than node03 and node05 on ib-a: 1 against 2 leaves",
                "node05 comes last: cable leaf01 port 3 runs at 4xDDR",
            ],
        ),
        (["history"], ["chat-large-1a2b", "ready", "a one-token request was answered", "2023-11-14"]),
        (["token", "list"], ["first"]),
        (["keys", "list"], ["alice", "llmgw-3f9a1c2d55-…", "600", "expired", "chat-small"]),
        (["catalog", "history"], ["* 2", "ops", "why", "2023-11-14"]),
        (["catalog", "show"], ["# Catalog revision 2, which rules.", "by ops: why", "- name: a"]),
    ],
)
def test_tables_tell_people_the_same(
    served: ServedAdmin, tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    done = ctl(*arguments, home=tmp_path, served=served)
    assert done.returncode == 0, done.stderr
    for part in parts:
        assert part in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["restart", "chat-s"], ("restart", "chat-small-3c4d", "first")),
        (["cordon", "node01"], ("cordon", "node01", True, "first")),
        (["uncordon", "node01"], ("cordon", "node01", False, "first")),
        (["drain", "node01"], ("drain", "node01", False, "first")),
        (["drain", "node01", "--force"], ("drain", "node01", True, "first")),
        (["undrain", "node01"], ("undrain", "node01", "first")),
        (["token", "revoke", "first"], ("revoke_token", "first", "first")),
        (["keys", "revoke", "alice"], ("revoke_key", "alice", "first")),
        (
            ["keys", "limit", "alice", "--concurrency", "none", "--all-models", "--expires", "never"],
            ("limit_key", "alice", LimitKey(concurrency=None, models=None, expires_at=None), "first"),
        ),
        (
            ["keys", "limit", "alice", "--models", "a, b", "--models", "c", "--priority", "-2"],
            ("limit_key", "alice", LimitKey(models=["a", "b", "c"], priority=-2), "first"),
        ),
        (
            ["keys", "limit", "alice", "--requests-per-minute", "5", "--tokens-per-minute", "6"],
            ("limit_key", "alice", LimitKey(requests_per_minute=5, tokens_per_minute=6), "first"),
        ),
        (["scale", "org/chat-large", "3"], ("scale", "org/chat-large", "default", 3, "first")),
        (["scale", "org/chat-large/default", "3"], ("scale", "org/chat-large", "default", 3, "first")),
        (["scale", "chat/default", "0"], ("scale", "org/chat-large", "default", 0, "first")),
        (["scale", "org/slow", "1"], ("scale", "org", "slow", 1, "first")),
    ],
)
def test_changes_reach_the_control_plane(
    served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path, arguments: list[str], asked: tuple[Any, ...]
) -> None:
    done = ctl(*arguments, home=tmp_path, served=served)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{asked[0]} was done\n"
    assert backend.asked[-1] == asked


def test_what_could_not_be_done_is_said_beside_the_answer(served: ServedAdmin, tmp_path: Path) -> None:
    done = ctl("scale", "chat-small", "3", home=tmp_path, served=served)
    assert done.stderr == "warning: no node could host a third\n"
    as_json = ctl("scale", "chat-small", "3", "-o", "json", home=tmp_path, served=served)
    assert json.loads(as_json.stdout)["warnings"] == ["no node could host a third"]


@pytest.mark.parametrize(
    ("left_s", "parts", "absent"),
    [
        (None, ["certificate until  -"], "WARNING"),
        (100 * 86400 + 60, ["(in 100d)"], "WARNING"),
        (13 * 86400 + 60, ["(in 13d: WARNING: not renewed", "ctl cert renew node01"], "EXPIRED"),
        (-7200, ["(EXPIRED 2h ago", "ctl cert renew node01"], "WARNING"),
    ],
)
def test_a_node_shows_how_long_its_certificate_holds_and_warns_before_it_ends(
    served: ServedAdmin, tmp_path: Path, left_s: float | None, parts: list[str], absent: str
) -> None:
    ends_at = None if left_s is None else time.time() + left_s
    served.backend.nodes_known = [node("node01", certificate_expires_at=ends_at)]
    (line,) = [
        line
        for line in ctl("nodes", "node01", home=tmp_path, served=served).stdout.splitlines()
        if line.startswith("certificate until")
    ]
    assert all(part in line for part in parts)
    assert absent not in line


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["scale", "org", "1"], "say which: org/chat-large or org/slow"),
        (["scale", "chat-small/fast", "1"], "there is no profile 'fast' of model 'chat-small'; known: default"),
        (["scale", "chat-smal", "1"], "did you mean 'chat-small'?"),
        (["scale", "elsewhere", "1"], "static endpoints"),
        (["restart", "chat"], "begins several replicas: chat-large-1a2b, chat-small-3c4d"),
        (["restart", "nothing"], "there is no replica 'nothing'; known: chat-large-1a2b"),
        (["logs", ""], "'' is not a name"),
        (["nodes", "node99"], "there is no node 'node99'; known: node01, node02"),
        (["cordon", "node99"], "known: node01, node02"),
        (["cordon", "a/b"], "'a/b' is not a node id: lower-case letters"),
        (["drain", "Node01"], "'Node01' is not a node id"),
        (["replicas", "--model", "nothing"], "known: chat-small"),
        (["explain", "nothing"], "there is no model 'nothing'"),
        (["history", "--kind", "nothing"], "known: replica, node"),
        (["token", "create", "a b"], "token name"),
        (["token", "create", "\udcff"], "not text"),
        (["keys", "create", "\udcff"], "not text"),
        (["keys", "create", "x" * 65], "is not a key name"),
        (["keys", "revoke", ".."], "'..' is not a name"),
        (["keys", "limit", "a/b", "--priority", "1"], "'a/b' is not a name"),
        (["token", "revoke", "a/b"], "'a/b' is not a name"),
        (["history", "--subject", "\udcff"], "not text"),
        (["nodes", "\udcff"], "is not a node id"),
        (["node", "remove", "..", "--yes"], "'..' is not a node id"),
        (["catalog", "show", "9"], "the catalog never had a revision 9; there are 1 to 2"),
        (["apply", "nothing.yaml", "--yes"], "nothing.yaml: there is no such file"),
        (["scale", "\udcff", "1"], "there is no model"),
    ],
)
def test_a_name_that_means_nothing_gets_a_sentence(
    served: ServedAdmin, tmp_path: Path, arguments: list[str], part: str
) -> None:
    assert part in sentence_of(ctl(*arguments, home=tmp_path, served=served))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nodse"], "Did you mean"),
        (["scale", "chat-small", "-1"], "'N'"),
        (["scale", "chat-small", "many"], "'N'"),
        (["drain"], "NODE"),
        (["nodes", "-o", "yaml"], "yaml"),
        (["history", "--limit", "0"], "--limit"),
        (["catalog", "rollback"], "N"),
        (["catalog", "rollback", "0"], "'N'"),
        (["node", "remove", "node01"], "needs --yes"),
    ],
)
def test_a_command_that_is_mistyped_ends_with_2(
    served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path, arguments: list[str], part: str
) -> None:
    done = ctl(*arguments, home=tmp_path, served=served)
    assert done.returncode == 2, done.stderr
    assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert backend.asked == []


def test_a_new_key_stands_alone_on_stdout_and_in_no_error(served: ServedAdmin, tmp_path: Path) -> None:
    done = ctl("keys", "create", "alice", "--models", "a", home=tmp_path, served=served)
    assert done.stdout == "llmgw-3f9a1c2d55-fresh-secret\n"
    assert "cannot be shown again" in done.stderr
    assert served.backend.asked[-1] == ("create_key", CreateKey(name="alice", models=["a"]), "first")
    shown = json.loads(ctl("keys", "create", "alice", "-o", "json", home=tmp_path, served=served).stdout)
    assert shown == {"name": "alice", "id": "3f9a1c2d55", "key": "llmgw-3f9a1c2d55-fresh-secret"}
    assert "fresh-secret" not in repr(NewKey(**shown))


def test_a_new_token_stands_alone_on_stdout(served: ServedAdmin, tmp_path: Path) -> None:
    done = ctl("token", "create", "ci", home=tmp_path, served=served)
    assert done.stdout == "llmgw-fresh-secret\n"
    assert "cannot be shown again" in done.stderr


def test_the_shared_options_may_stand_before_the_command_too(served: ServedAdmin, tmp_path: Path) -> None:
    done = ctl("-o", "json", "--server", served.url, "--token", TOKEN, "fabrics", home=tmp_path)
    assert json.loads(done.stdout)[0]["name"] == "ib-a"


def test_a_defect_of_the_server_is_told_as_such(
    served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path
) -> None:
    backend.broken = True
    assert "its log has the details" in sentence_of(ctl("nodes", home=tmp_path, served=served))


def test_an_odd_node_does_not_break_the_table(
    served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path
) -> None:
    bare = node("node03", gpus=[], fabrics=[], ports=[], version=None, last_heard_s=None, reason="a\n\x1b[31mb")
    backend.nodes_known.append(bare)
    done = ctl("nodes", home=tmp_path, served=served)
    row = next(line for line in done.stdout.splitlines() if "node03" in line)
    assert "none" in row
    assert "\x1b" not in done.stdout


def test_one_name_over_two_fabrics_is_told_apart_by_id_and_its_problem_said_once(
    served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path
) -> None:
    (first,) = backend.fabrics.listed
    problem = "the name ib-a stands for 2 physical fabrics"
    twin = msgspec.structs.replace(first, id="0x0c42a10300000402", problems=[problem])
    other = msgspec.structs.replace(first, name="ib-x", problems=[problem])
    backend.fabrics.listed[:] = [msgspec.structs.replace(first, problems=[problem]), twin, other]
    done = ctl("fabrics", home=tmp_path, served=served)
    assert "ib-a (0x0c42a10300000401)  " in done.stdout
    assert "ib-a (0x0c42a10300000402)  " in done.stdout
    assert [line for line in done.stdout.splitlines() if "PROBLEM" in line] == [f"PROBLEM: ib-a, ib-x: {problem}"]


def test_a_process_answers_fails_and_is_mistyped_as_its_exit_code_says(
    served: ServedAdmin, tmp_path: Path
) -> None:
    done = ctl_process("fabrics", home=tmp_path, served=served)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ib-a" in done.stdout
    assert "known: node01, node02" in sentence_of(ctl_process("nodes", "node99", home=tmp_path, served=served))
    mistyped = ctl_process("replcias", home=tmp_path, served=served)
    assert mistyped.returncode == 2
    assert "Did you mean 'replicas'" in mistyped.stderr


def test_help_needs_no_server_and_none_of_the_heavy_libraries(tmp_path: Path) -> None:
    program = """
import sys
from llmgw.__main__ import main
sys.argv[:] = ["llmgw", "ctl", "--help"]
try:
    main()
except SystemExit:
    print(sorted({"httpx", "msgspec", "cryptography", "sqlalchemy", "uvicorn"} & set(sys.modules)))
"""
    command = [sys.executable, "-c", program]
    env = environment(tmp_path)
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert "drain" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_lies_on_disks_is_shown_with_who_uses_it_and_a_silent_node_breaks_nothing(
    served: ServedAdmin, tmp_path: Path
) -> None:
    done = ctl("models", "--on-disk", home=tmp_path, served=served)
    assert done.returncode == 0, done.stderr
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert rows == [
        "NODE SIZE STATE USED BY FILE",
        "node01 5.0 GiB complete chat-small, shard chat-small-3c4d.0 https/h/a.gguf",
        "node01 7.0 GiB complete nothing https/h/old.gguf",
        "node01 1.0 GiB of 2.0 GiB partial nothing https/h/b.gguf.part",
        "node01 12 B not llmgw's - mine.txt",
        "node01: /var/lib/llmgw-agent/weights: 512.0 GiB of 1.0 TiB free",
    ]
    assert "node02 has no session now" in done.stderr
    assert "3 more files" in done.stderr


def test_what_nothing_uses_is_removed_after_a_yes_and_nothing_else(
    backend: ScriptedBackend, served: ServedAdmin, tmp_path: Path
) -> None:
    asked = ctl("models", "--remove-unused", home=tmp_path, served=served)
    assert asked.returncode == 1
    assert "2 files (8.0 GiB) would be removed" in asked.stderr
    assert "https/h/old.gguf (7.0 GiB, complete)" in asked.stderr
    assert backend.asked == []
    done = ctl("models", "--remove-unused", "--node", "node01", "--yes", home=tmp_path, served=served)
    assert done.returncode == 0, done.stderr
    assert backend.asked == [("remove_weights", {"node01": ["https/h/old.gguf", "https/h/b.gguf.part"]}, "first")]
    assert "1 file is removed" in done.stdout
    assert "y is kept: z" in done.stderr
    nothing = ctl("models", "--remove-unused", "--node", "node02", "-o", "json", home=tmp_path, served=served)
    assert json.loads(nothing.stdout)["removed"] == {}


@pytest.mark.parametrize(
    "arguments", [["--on-disk", "--remove-unused"], ["--node", "node01"], ["--on-disk", "--yes"]]
)
def test_options_of_models_that_do_not_fit_together_are_a_sentence(
    served: ServedAdmin, tmp_path: Path, arguments: list[str]
) -> None:
    done = ctl("models", *arguments, home=tmp_path, served=served)
    assert done.returncode == 1
    assert "--remove-unused" in sentence_of(done)
