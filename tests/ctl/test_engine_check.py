"""`llmgw ctl engine-check` as it is typed: help files, fake programs, nodes, profiles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llmgw.engines import registry
from llmgw.engines.widest import widest_flags
from tests.ctl.run_ctl import Done, ctl, ctl_process, sentence_of
from tests.ctl.scripted import ScriptedBackend, ServedAdmin
from tests.engines.help_texts import options_of, whole_help, without


def whole(engine: str) -> str:
    return whole_help(engine, options_of(widest_flags(registry.adapter(engine))[engine]))


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def check(home: Path, *arguments: str, served: ServedAdmin | None = None, **env: str) -> Done:
    done = ctl("engine-check", *arguments, home=home, served=served, **env)
    assert "Traceback" not in done.stderr
    return done


def answer(done: Done) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "sim"])
def test_a_help_file_with_every_flag_is_all_taken_and_exits_0(tmp_path: Path, engine: str) -> None:
    (tmp_path / "help.txt").write_text(whole(engine))
    done = check(tmp_path, engine, "--help-file", "help.txt", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = answer(done)
    assert list(found) == ["engine", "version", "ok", "truncated", "flags"]
    assert (found["engine"], found["ok"], found["truncated"]) == (engine, True, False)
    assert all(list(each) == ["flag", "ok", "line", "nearest"] for each in found["flags"])
    assert all(each["ok"] is True and each["line"] and each["nearest"] is None for each in found["flags"])


def test_one_flag_cut_out_is_missing_alone_and_exits_1(tmp_path: Path) -> None:
    (tmp_path / "help.txt").write_text(without(whole("vllm"), "--node-rank"))
    done = check(tmp_path, "vllm", "--help-file", "help.txt", "-o", "json")
    assert done.returncode == 1
    missing = [each for each in answer(done)["flags"] if not each["ok"]]
    assert [(each["flag"], each["ok"], each["line"]) for each in missing] == [("--node-rank", False, None)]
    assert missing[0]["nearest"].startswith("-")
    table = check(tmp_path, "vllm", "--help-file", "help.txt")
    assert table.returncode == 1
    assert "--node-rank" in table.stdout.splitlines()[1]
    assert table.stdout.splitlines()[1].split()[1] == "missing"
    assert "flags are missing: --node-rank" in table.stdout


def test_a_truncated_text_calls_nothing_missing_warns_and_exits_2(tmp_path: Path) -> None:
    text = whole("vllm")
    (tmp_path / "help.txt").write_text(text[: text.index("--node-rank")])
    done = check(tmp_path, "vllm", "--help-file", "help.txt", "-o", "json")
    assert done.returncode == 2
    found = answer(done)
    assert (found["ok"], found["truncated"]) == (None, True)
    assert {each["ok"] for each in found["flags"]} == {True, None}
    assert "looks truncated" in done.stderr


def test_a_truncated_text_that_has_every_flag_warns_and_exits_0(tmp_path: Path) -> None:
    (tmp_path / "help.txt").write_text(whole("vllm").partition("When passing JSON")[0])
    done = check(tmp_path, "vllm", "--help-file", "help.txt")
    assert done.returncode == 0
    assert "looks truncated" in done.stderr


def test_a_text_comes_through_a_pipe_and_the_engine_as_its_makers_write_it(tmp_path: Path) -> None:
    path = program(
        tmp_path / "pipe", f"cat help.txt | {sys.executable} -m llmgw ctl engine-check llama.cpp --help-file -"
    )
    (tmp_path / "help.txt").write_text(whole("llamacpp"))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([path], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert "llamacpp: all" in done.stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("", "is empty"),
        ("hello\n", "lists no option"),
        (b"\x00\xff" * 4000, "lists no option"),
    ],
)
def test_a_file_that_is_no_help_gets_a_sentence_and_exits_2(
    tmp_path: Path, content: str | bytes | None, says: str
) -> None:
    path = tmp_path / "help.txt"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert says in sentence_of(check(tmp_path, "vllm", "--help-file", "help.txt"), 2)


def test_a_folder_and_an_endless_file_get_a_sentence(tmp_path: Path) -> None:
    assert "cannot be read" in sentence_of(check(tmp_path, "vllm", "--help-file", str(tmp_path)), 2)
    assert "larger than" in sentence_of(check(tmp_path, "vllm", "--help-file", "/dev/zero"), 2)


def test_programs_are_run_where_no_server_is(tmp_path: Path) -> None:
    (tmp_path / "help.txt").write_text(whole("vllm"))
    text = (
        f'[ "$*" = "serve --help=all" ] && exec cat {tmp_path}/help.txt; [ "$*" = --version ] && echo vllm 0.40.1'
    )
    vllm = program(tmp_path / "vllm", text)
    for arguments in (["--bin", vllm], ["--bin", "./vllm"]):
        done = check(tmp_path, "vllm", *arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        assert answer(done)["version"] == "0.40.1"
    (tmp_path / "python3").touch(mode=0o755)
    assert check(tmp_path, "vllm", "--python", str(tmp_path / "python3")).returncode == 0
    assert check(tmp_path, "vllm", PATH=f"{tmp_path}:{os.environ['PATH']}").returncode == 0


def test_the_program_in_this_hosts_agent_yaml_is_the_one_that_is_asked(tmp_path: Path) -> None:
    (tmp_path / "help.txt").write_text(whole("llamacpp"))
    path = program(tmp_path / "own-server", f"cat {tmp_path}/help.txt")
    (tmp_path / "agent.yaml").write_text(
        f"node_id: here\nserver: https://gw:8443\nengines: {{llamacpp: {{bin: {path}}}}}\n"
    )
    assert check(tmp_path, "llamacpp").returncode == 0


def test_sglang_is_asked_through_its_interpreter_or_its_program(tmp_path: Path) -> None:
    (tmp_path / "help.txt").write_text(whole("sglang"))
    asked = f'echo "$*" >> {tmp_path}/asked; exec cat {tmp_path}/help.txt'
    assert check(tmp_path, "sglang", "--python", program(tmp_path / "python3", asked)).returncode == 0
    assert check(tmp_path, "sglang", "--bin", program(tmp_path / "sglang", asked)).returncode == 0
    lines = (tmp_path / "asked").read_text().splitlines()
    assert {"-m sglang.launch_server --help", "serve --help"} <= set(lines)


def test_the_flags_of_a_ray_beside_vllm_are_checked_too(tmp_path: Path) -> None:
    flags = widest_flags(registry.adapter("vllm"))
    (tmp_path / "vllm.txt").write_text(whole_help("vllm", options_of(flags["vllm"])))
    (tmp_path / "ray.txt").write_text(without(whole_help("ray", options_of(flags["ray"])), "--block"))
    vllm = program(tmp_path / "vllm", f"cat {tmp_path}/vllm.txt")
    program(tmp_path / "ray", f"cat {tmp_path}/ray.txt")
    done = check(tmp_path, "vllm", "--bin", vllm, "-o", "json")
    assert done.returncode == 1
    missing = [each["flag"] for each in answer(done)["flags"] if each["ok"] is False]
    assert missing == ["ray start --block"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("exit 0", "printed nothing"),
        ("echo something broke >&2; exit 1", "exited with 1; its last line: something broke"),
        ("exec sleep 1000", "hangs: it had not ended after 1 s and was killed"),
        ("echo hello", "lists no option"),
    ],
)
def test_a_program_that_gives_no_help_gets_a_sentence_and_exits_2(tmp_path: Path, text: str, says: str) -> None:
    path = program(tmp_path / "vllm", text)
    assert says in sentence_of(check(tmp_path, "vllm", "--bin", path, "--timeout", "1"), 2)


def test_a_file_that_cannot_be_run_gets_a_sentence_and_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "vllm"
    assert "does not exist" in sentence_of(check(tmp_path, "vllm", "--bin", str(path)), 2)
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + bytes([2, 0, 0xF3, 0]) + bytes(100))
    assert "not executable" in sentence_of(check(tmp_path, "vllm", "--bin", str(path)), 2)
    path.chmod(0o755)
    assert "built for riscv" in sentence_of(check(tmp_path, "vllm", "--bin", str(path)), 2)


def test_a_hanging_program_is_ended_with_ctrl_c(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    path = program(tmp_path / "vllm", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "llmgw", "ctl", "engine-check", "vllm", "--bin", path]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 30
        while not pid.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=90)
    assert (running.returncode, said) == (130, "")
    while Path(f"/proc/{pid.read_text().strip()}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


CATALOG = """
models:
- name: org/name
  source: org/name
  profiles:
  - {name: fine, engine: vllm, args: [--max-model-len, "4096"]}
  - {name: wrong, engine: vllm, args: [--max-model-lan, "4096", --no-such-flag]}
  - {name: other, engine: sglang}
"""


def test_a_profiles_own_arguments_are_checked_from_a_file_without_a_server(tmp_path: Path) -> None:
    flags = [*widest_flags(registry.adapter("vllm"))["vllm"], "--max-model-len"]
    (tmp_path / "help.txt").write_text(whole_help("vllm", options_of(flags)))
    (tmp_path / "catalog.yaml").write_text(CATALOG)
    from_file = ["vllm", "--help-file", "help.txt", "--catalog", "catalog.yaml", "-o", "json"]
    done = check(tmp_path, *from_file, "--profile", "org/name/fine")
    assert done.returncode == 0
    assert "--max-model-len" in [each["flag"] for each in answer(done)["flags"]]
    done = check(tmp_path, *from_file, "--profile", "org/name/wrong")
    assert done.returncode == 1
    missing = {each["flag"]: each["nearest"] for each in answer(done)["flags"] if each["ok"] is False}
    assert set(missing) == {"--max-model-lan", "--no-such-flag"}
    assert missing["--max-model-lan"] == "--max-model-len"
    assert "runs on sglang" in sentence_of(check(tmp_path, *from_file, "--profile", "org/name/other"), 2)
    assert "known: fine" in sentence_of(check(tmp_path, *from_file, "--profile", "org/name/fin"), 2)


def test_a_profile_of_the_servers_catalog_is_found_there(served: ServedAdmin, tmp_path: Path) -> None:
    (tmp_path / "help.txt").write_text(whole("sim"))
    done = check(tmp_path, "sim", "--help-file", "help.txt", "--profile", "a", served=served)
    assert done.returncode == 0, done.stderr
    without_server = check(tmp_path, "sim", "--help-file", "help.txt", "--profile", "a")
    assert "--server" in sentence_of(without_server, 2)


def test_a_node_is_asked_through_the_server(
    served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path
) -> None:
    (tmp_path / "catalog.yaml").write_text(CATALOG)
    profile = ["--profile", "org/name/fine", "--catalog", "catalog.yaml"]
    done = check(tmp_path, "vllm", "--node", "node01", *profile, "-o", "json", served=served)
    assert done.returncode == 0
    assert answer(done)["version"] == "9.9"
    assert backend.asked == [("check_engine", "node01", "vllm", ["--max-model-len", "4096"])]
    for ok, code in ((False, 1), (None, 2)):
        backend.flags_ok = ok
        assert check(tmp_path, "vllm", "--node", "node01", served=served).returncode == code
    old = sentence_of(check(tmp_path, "vllm", "--node", "node02", served=served), 2)
    assert "too old" in old
    assert "--server" in sentence_of(check(tmp_path, "vllm", "--node", "node01"), 2)


def test_a_wrong_command_line_gets_a_sentence(tmp_path: Path) -> None:
    def says(*arguments: str) -> str:
        return sentence_of(check(tmp_path, *arguments), 2)

    assert "no engine is called 'tgi'" in says("tgi")
    assert "give one of them" in says("vllm", "--bin", "a", "--help-file", "b")
    assert "--profile" in says("vllm", "--catalog", "c.yaml")
    assert "--timeout" in says("vllm", "--node", "node01", "--timeout", "5")
    assert "there is no program" in says("vllm", "--python", "/no/such/python")
    (tmp_path / "python3").touch(mode=0o755)
    assert "no llama-server beside" in says("llamacpp", "--python", str(tmp_path / "python3"))


def test_it_answers_as_a_process(tmp_path: Path) -> None:
    done = ctl_process("engine-check", "sim", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "flags are taken" in done.stdout
