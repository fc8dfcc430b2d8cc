"""Asking programs for their help: fake ones, each with one way to go wrong."""

from __future__ import annotations

import asyncio
import os
import pwd
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from llmgw.agent.engine_help import HelpError, ask_engine
from llmgw.agent.help_answers import HelpAnswers
from llmgw.config.agent import AgentConfig
from llmgw.engines.registry import adapter
from llmgw.hardware.engine_user import Account
from tests.agent.waiting import until
from tests.engines.help_texts import whole_help

VLLM = adapter("vllm")


def program(path: Path, text: str, head: str = "#!/bin/sh\n") -> str:
    path.write_text(head + text)
    path.chmod(0o755)
    return str(path)


def sentence(path: str, limit_s: float = 20.0) -> str:
    with pytest.raises(HelpError) as refused:
        ask_engine(VLLM, path, os.environ, limit_s=limit_s)
    assert refused.value.exit_code == 2
    assert path in str(refused.value)
    return str(refused.value)


def test_vllm_is_asked_for_all_of_its_help_at_a_width_that_breaks_no_word(tmp_path: Path) -> None:
    vllm = program(tmp_path / "vllm", 'echo "usage: $* $COLUMNS"')
    assert ask_engine(VLLM, vllm, os.environ).text == "usage: serve --help=all 300\n"


@pytest.mark.parametrize(
    ("engine", "asked"),
    [
        ("sglang", "-m sglang.launch_server --help"),
        ("llamacpp", "--help"),
        ("sim", "-m llmgw sim engine --help"),
    ],
)
def test_each_engine_is_asked_in_its_own_way(tmp_path: Path, engine: str, asked: str) -> None:
    path = program(tmp_path / "program", 'echo "usage: $*"')
    assert ask_engine(adapter(engine), path, os.environ).text == f"usage: {asked}\n"


def test_the_version_is_asked_for_where_the_text_does_not_say_it(tmp_path: Path) -> None:
    (tmp_path / "help.txt").write_text(whole_help("llamacpp", [["--port", "PORT"]]))
    path = program(
        tmp_path / "llama-server",
        f'[ "$1" = --version ] && {{ echo "version: 11434 (abc)" >&2; exit 0; }}\ncat {tmp_path}/help.txt',
    )
    assert ask_engine(adapter("llamacpp"), path, os.environ).version == "11434"


def test_ray_is_asked_too_where_it_stands_beside_vllm(tmp_path: Path) -> None:
    vllm = program(tmp_path / "vllm", "echo 'usage: vllm'")
    assert ask_engine(VLLM, vllm, {"PATH": "/bin:/usr/bin"}).sidecars == {}
    ray = program(tmp_path / "ray", 'echo "usage: ray $*"')
    assert ask_engine(VLLM, vllm, os.environ).sidecars == {"ray": "usage: ray start --help\n"}
    program(Path(ray), "exit 3")
    assert ask_engine(VLLM, vllm, os.environ).sidecars == {"ray": None}


def test_what_stands_on_stderr_is_not_taken_for_the_help(tmp_path: Path) -> None:
    path = program(tmp_path / "vllm", "printf '\\033[1;33mdeprecated\\033[0m\\n' >&2; echo 'usage: it'")
    assert ask_engine(VLLM, path, os.environ).text == "usage: it\n"


def test_a_program_that_does_not_exist_gets_a_sentence(tmp_path: Path) -> None:
    assert "does not exist" in sentence(str(tmp_path / "vllm"))
    assert "is a folder" in sentence(str(tmp_path))
    assert "on PATH" in sentence("no-such-program-here")


def test_a_program_that_is_not_executable_gets_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "vllm"
    path.write_text("#!/bin/sh\n")
    path.chmod(stat.S_IRUSR)
    said = sentence(str(path))
    assert "not executable" in said
    assert f"chmod a+rx {path}" in said


def test_a_program_of_another_architecture_gets_a_sentence_that_names_both(tmp_path: Path) -> None:
    path = tmp_path / "llama-server"
    # /usr/include/elf.h: 64 bits, little end first, an executable for AArch64 (or for x86-64, on AArch64).
    machine = 0x3E if os.uname().machine == "aarch64" else 0xB7
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + bytes([2, 0, machine, 0]) + bytes(100))
    path.chmod(0o755)
    said = sentence(str(path))
    assert "Exec format error" in said
    assert ("x86_64" if machine == 0x3E else "aarch64") in said
    assert os.uname().machine in said


def test_a_script_that_says_nothing_of_its_interpreter_gets_a_sentence(tmp_path: Path) -> None:
    assert "#!" in sentence(program(tmp_path / "vllm", "echo hello\n", head=""))
    assert "interpreter" in sentence(program(tmp_path / "vllm", "", head="#!/no/such/interpreter\n"))


def test_a_program_that_prints_nothing_gets_a_sentence(tmp_path: Path) -> None:
    assert "printed nothing" in sentence(program(tmp_path / "vllm", "exit 0"))
    assert "exited with 1 and printed nothing" in sentence(program(tmp_path / "vllm", "exit 1"))


def test_a_program_that_fails_gets_a_sentence_with_its_last_line(tmp_path: Path) -> None:
    text = "echo first; printf 'Traceback:\\n  \\033[31mModuleNotFoundError: vllm\\033[0m\\n\\n' >&2; exit 1"
    said = sentence(program(tmp_path / "vllm", text))
    assert said.endswith("exited with 1; its last line: ModuleNotFoundError: vllm")
    assert "signal 9" in sentence(program(tmp_path / "vllm", "kill -9 $$"))


def test_vllm_without_a_gpu_gets_the_hint_to_ask_it_on_a_node(tmp_path: Path) -> None:
    path = program(tmp_path / "vllm", "echo 'RuntimeError: Failed to infer device type' >&2; exit 1")
    assert "--node NODE" in sentence(path)


def test_a_program_that_hangs_is_killed_with_its_children_when_its_time_is_over(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    path = program(tmp_path / "vllm", f"echo usage: vllm; sleep 1000 & echo $$ $! > {pids}; wait")
    said = sentence(path, limit_s=2.0)
    assert "hangs: it had not ended after 2 s and was killed" in said
    gone([int(pid) for pid in pids.read_text().split()])


def test_a_program_that_never_stops_printing_is_ended(tmp_path: Path) -> None:
    assert "which is no help text" in sentence(program(tmp_path / "vllm", "yes"))


def test_asking_ends_when_it_is_stopped_and_the_program_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    path = program(tmp_path / "vllm", f"echo $$ > {pids}.new; mv {pids}.new {pids}; exec sleep 1000")
    stop = threading.Event()
    ended: list[str] = []

    def ask() -> None:
        with pytest.raises(HelpError) as refused:
            ask_engine(VLLM, path, os.environ, stop=stop)
        ended.append(str(refused.value))

    thread = threading.Thread(target=ask)
    thread.start()
    deadline = time.monotonic() + 20
    while not pids.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    stop.set()
    thread.join(20)
    assert "stopped" in ended[0]
    gone([int(pids.read_text())])


def gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_an_agent_asks_the_program_that_its_configuration_names(tmp_path: Path) -> None:
    path = program(tmp_path / "vllm", 'echo "usage: $HF_HOME$SECRET"')
    answers = HelpAnswers(config(vllm={"bin": path}), {"HF_HOME": "/hf", "SECRET": "s", **os.environ})
    answer = asyncio.run(answers("q1", "vllm"))
    assert (answer.request_id, answer.engine, answer.error) == ("q1", "vllm", None)
    assert answer.text == "usage: /hf\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_an_agent_asks_an_engine_as_the_user_that_engines_run_as(tmp_path: Path) -> None:
    path = program(tmp_path / "vllm", 'echo "$(id -u) $HOME"')
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o011)
    nobody = pwd.getpwnam("nobody")
    account = Account(name="nobody", uid=nobody.pw_uid, gid=nobody.pw_gid, home=nobody.pw_dir)
    answers = HelpAnswers(config(vllm={"bin": path}), os.environ, account)
    assert asyncio.run(answers("q", "vllm")).text == f"{nobody.pw_uid} {tempfile.gettempdir()}\n"


def test_an_agent_that_finds_nobody_to_run_engines_as_asks_none(tmp_path: Path) -> None:
    path = program(tmp_path / "vllm", f"touch {tmp_path}/asked")
    answers = HelpAnswers(config(vllm={"bin": path}), os.environ, None, "there is no such user")
    assert asyncio.run(answers("q", "vllm")).error == "there is no such user"
    assert not (tmp_path / "asked").exists()


def test_a_package_in_the_current_folder_is_not_taken_for_the_engine(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    (tmp_path / "sglang" / "launch_server.py").write_text("print('usage: a stranger')")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with pytest.raises(HelpError, match="No module named"):
            ask_engine(adapter("sglang"), sys.executable, os.environ)


def test_an_agent_says_in_a_sentence_why_an_engine_cannot_be_asked(tmp_path: Path) -> None:
    answers = HelpAnswers(config(vllm={"bin": str(tmp_path / "vllm")}), os.environ)

    def error(engine: str) -> str:
        return asyncio.run(answers("q", engine)).error or ""

    assert "does not exist; correct the path, or check engines.vllm in agent.yaml" in error("vllm")
    assert "set engines.sglang in its agent.yaml" in error("sglang")
    assert "no engine is called 'tgi'" in error("tgi")
    program(tmp_path / "vllm", "echo broken; exit 1")
    assert "its last line: broken" in error("vllm")


def test_an_agent_that_ends_while_it_asks_takes_the_program_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    path = program(tmp_path / "vllm", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000")

    async def end_early() -> None:
        asked = asyncio.ensure_future(HelpAnswers(config(vllm={"bin": path}), os.environ)("q", "vllm"))
        await until(pid.exists, "the program runs", 20)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    began = time.monotonic()
    asyncio.run(end_early())
    assert time.monotonic() - began < 30
    gone([int(pid.read_text())])


def config(**engines: object) -> AgentConfig:
    return AgentConfig.model_validate({"node_id": "node01", "server": "https://gw:8443", "engines": engines})
