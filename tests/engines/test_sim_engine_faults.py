"""Each way in which the simulated engine can be made to fail."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.running import ENGINE, Program, environment, http, metric, program, sim_engine
from tests.ports import free_port

BODY = {"prompt": "hello", "max_tokens": 5}
LONG: dict[str, Any] = {"prompt": "hello", "max_tokens": 30_000, "ignore_eos": True, "stream": True}


def ask(running: Program, timeout_s: float = 5, **changes: Any) -> httpx.Response:
    return http.post(f"{running.url()}/v1/completions", json={**BODY, **changes}, timeout=timeout_s)


def set_faults(running: Program, **faults: Any) -> httpx.Response:
    return http.post(f"{running.url()}/sim/faults", json=faults)


def test_connections_are_refused_until_it_has_loaded() -> None:
    port = free_port()
    started = time.monotonic()
    with sim_engine("--port", str(port), "--load-s", "0.5") as running:
        running.wait_for("loading")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        assert running.port() == port
        assert time.monotonic() - started >= 0.5
        assert http.get(f"{running.url()}/health").status_code == 200


def test_a_failed_load_ends_with_the_engines_own_words() -> None:
    with sim_engine("--fail-load") as running:
        assert running.wait_exit() == 1
        assert "CUDA out of memory" in running.errors
        assert "Traceback" not in running.errors


def test_it_crashes_on_the_request_after_so_many() -> None:
    with sim_engine("--crash-after", "2", "--tokens-per-s", "1000") as running:
        assert [ask(running).status_code for _ in range(2)] == [200, 200]
        with pytest.raises(httpx.RemoteProtocolError):
            ask(running)
        assert running.wait_exit() == 1
        assert "fatal error" in running.errors


def test_a_dead_core_says_healthy_and_answers_nothing() -> None:
    with sim_engine("--core-dead-after", "1", "--tokens-per-s", "1000") as running:
        assert ask(running).status_code == 200
        tokens = metric(http.get(f"{running.url()}/metrics").text, "vllm:generation_tokens_total")
        with pytest.raises(httpx.ReadTimeout):
            ask(running, timeout_s=0.5)
        assert http.get(f"{running.url()}/health").status_code == 200
        assert http.get(f"{running.url()}/v1/models").status_code == 200
        assert metric(http.get(f"{running.url()}/metrics").text, "vllm:generation_tokens_total") == tokens
        running.terminate()
        assert running.wait_exit() == 0


def test_a_core_that_dies_can_also_say_so_to_new_requests_and_running_streams() -> None:
    with sim_engine("--core-dead-mode", "error") as running:
        with http.stream("POST", f"{running.url()}/v1/completions", json=LONG) as stream:
            pieces = stream.iter_bytes()
            next(pieces)
            set_faults(running, core_dead=True)
            rest = b"".join(pieces)
        assert b"EngineCore encountered an issue" in rest
        assert rest.endswith(b"data: [DONE]\n\n")
        answer = ask(running)
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "InternalServerError"


def test_a_stream_stalls_after_so_many_tokens_and_goes_on_when_the_fault_is_lifted() -> None:
    with sim_engine("--stall-after-tokens", "3", "--tokens-per-s", "1000") as running:
        body = {**LONG, "max_tokens": 6}
        with http.stream("POST", f"{running.url()}/v1/completions", json=body, timeout=20) as stream:
            pieces = stream.iter_bytes()
            received = b""
            while received.count(b"data: ") < 3:
                received += next(pieces)
            page = http.get(f"{running.url()}/metrics").text
            assert metric(page, "vllm:num_requests_running") == 1
            assert metric(page, "vllm:generation_tokens_total") == 3
            set_faults(running, stall_after_tokens=None)
            received += b"".join(pieces)
        assert received.count(b"data: ") == 7


def test_requests_fail_after_so_many_or_at_a_rate() -> None:
    with sim_engine("--error-500-after", "1", "--tokens-per-s", "1000") as running:
        assert [ask(running).status_code for _ in range(3)] == [200, 500, 500]
        set_faults(running, error_500_after=None, error_rate=0.5)
        assert [ask(running).status_code for _ in range(4)] == [200, 500, 200, 500]
        assert ask(running, stream=True).headers["content-type"].startswith("text/event-stream")


def test_the_first_token_can_be_slow() -> None:
    with sim_engine("--slow-first-token-s", "0.4", "--tokens-per-s", "1000") as running:
        started = time.monotonic()
        assert ask(running).status_code == 200
        assert time.monotonic() - started >= 0.4


def test_tokens_come_at_the_rate_that_was_asked_for() -> None:
    with sim_engine("--tokens-per-s", "100") as running:
        running.url()
        started = time.monotonic()
        assert ask(running, max_tokens=51).status_code == 200
        assert time.monotonic() - started >= 0.5


def test_sigterm_can_be_ignored() -> None:
    with sim_engine("--ignore-sigterm", "--tokens-per-s", "1000") as running:
        running.url()
        running.terminate()
        running.wait_for("SIGTERM ignored")
        assert ask(running).status_code == 200


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"explode": 1}, "there is no fault 'explode'"),
        ({"crash_after": -1}, "a count from 0"),
        ({"crash_after": "3"}, "a count from 0"),
        ({"core_dead": 1}, "true or false"),
        ({"core_dead_mode": "sleep"}, "hang or error"),
        ({"error_rate": 2}, "from 0 to 1"),
        ({"tokens_per_s": 0}, "above 0"),
        ({"slow_first_token_s": None}, "a number from 0"),
    ],
)
def test_a_wrong_fault_is_refused_and_changes_nothing(engine: Program, faults: Any, words: str) -> None:
    before = http.get(f"{engine.url()}/sim/faults").json()
    answer = set_faults(engine, **{"tokens_per_s": 7, **faults})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert http.get(f"{engine.url()}/sim/faults").json() == before


def test_it_holds_the_memory_of_its_gpus_while_it_runs(tmp_path: Path) -> None:
    env = {"LLMGW_SIM_HARDWARE": str(tmp_path), "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    with sim_engine("--gpu-memory-mib", "4096", **env) as running:
        running.url()
        used = {path.name: path.read_text().strip() for path in (tmp_path / "used").iterdir()}
        pid = running.process.pid
        assert used == {f"GPU-a.{pid}": "4096", f"GPU-b.{pid}": "4096"}
        running.terminate()
        assert running.wait_exit() == 0
        assert list((tmp_path / "used").iterdir()) == []


def test_a_hardware_folder_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    with sim_engine(LLMGW_SIM_HARDWARE=str(tmp_path / "none"), CUDA_VISIBLE_DEVICES="GPU-a") as running:
        assert running.wait_exit() == 1
        assert running.errors.startswith("cannot take GPU memory in ")
        assert running.errors.count("\n") == 1


def test_a_busy_port_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with sim_engine("--port", str(port)) as running:
            assert running.wait_exit() == 1
            assert running.errors.startswith(f"cannot listen on 127.0.0.1 port {port}: Address already in use")
            assert running.errors.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--rank", "2", "--nnodes", "2"], "--rank 2 is not below --nnodes 2"),
        (["--nnodes", "2"], "needs --rendezvous-host and --rendezvous-port"),
        (["--core-dead-mode", "sleep"], "hang or error"),
    ],
)
def test_options_that_contradict_each_other_are_a_sentence(args: list[str], words: str) -> None:
    with program([*ENGINE, "--served-name", "tiny", *args], environment()) as running:
        assert running.wait_exit() == 2
        assert words in running.errors
        assert running.errors.count("\n") == 1


def test_an_idle_engine_uses_no_processor() -> None:
    with sim_engine() as running:
        assert ask(running).status_code == 200
        stat = Path(f"/proc/{running.process.pid}/stat")
        if not stat.exists():
            pytest.skip("this system has no /proc to read processor time from")

        def ticks() -> int:
            return sum(int(field) for field in stat.read_text().rpartition(")")[2].split()[11:13])

        before = ticks()
        time.sleep(0.5)  # What is measured is that nothing happens in this time.
        assert ticks() - before <= 1
