"""`llmgw sim fault`: a running simulated engine is told to fail, and mended."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from tests.engines.running import Program, http, sim_engine

BODY = {"prompt": "hello", "max_tokens": 20}


def fault(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmgw", "sim", "fault", *words],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def address(running: Program) -> str:
    return running.url().removeprefix("http://")


def ask(running: Program, **changes: object) -> httpx.Response:
    return http.post(f"{running.url()}/v1/completions", json={**BODY, **changes}, timeout=20)


def test_a_running_engine_is_told_to_fail_and_is_mended() -> None:
    with sim_engine("--tokens-per-s", "1000", "--error-rate", "0.5") as running:
        done = fault(address(running), "error-rate=1", "stall_after_tokens=off")
        assert done.returncode == 0, done.stderr
        assert "error_rate=1\n" in done.stdout
        assert [ask(running).status_code for _ in range(2)] == [500, 500]
        assert "error_rate=1\n" in fault(address(running)).stdout
        done = fault(address(running), "ok")
        assert "error_rate=0.5\n" in done.stdout, "as it was started"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["explode=1"], "there is no fault 'explode'"),
        (["error_rate=2"], "error_rate is a share from 0 to 1"),
        (["error_rate"], "write NAME=VALUE"),
        (["ok", "error_rate=1"], "write NAME=VALUE"),
    ],
)
def test_a_wrong_fault_is_a_sentence(engine: Program, words: list[str], sentence: str) -> None:
    done = fault(address(engine), *words)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_where_no_engine_is_there_is_a_sentence() -> None:
    assert "no engine answers at 127.0.0.1:1" in fault("127.0.0.1:1").stderr
    assert "is no address of an engine" in fault("127.0.0.1:99999").stderr


def test_a_connection_is_reset_in_the_middle_of_the_head() -> None:
    with sim_engine("--reset-rate", "1", "--tokens-per-s", "1000") as running:
        with pytest.raises(httpx.ReadError):
            ask(running)
        assert http.post(f"{running.url()}/sim/faults", json={"reset_rate": 0}).status_code == 200
        assert ask(running).status_code == 200


def test_a_stream_is_reset_after_so_many_tokens_and_a_whole_answer_before_its_head() -> None:
    with sim_engine("--reset-after-tokens", "5", "--tokens-per-s", "1000") as running:
        received: list[bytes] = []
        body = {**BODY, "stream": True}
        with (
            pytest.raises(httpx.ReadError),
            http.stream("POST", f"{running.url()}/v1/completions", json=body, timeout=20) as stream,
        ):
            received.extend(stream.iter_raw())
        assert b"".join(received).count(b"data: ") == 5
        with pytest.raises(httpx.ReadError):
            ask(running)


def test_the_log_says_of_each_request_by_its_id_whether_it_was_answered_whole() -> None:
    with sim_engine("--tokens-per-s", "1000") as running:
        url = f"{running.url()}/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 20}
        http.post(url, json=body, headers={"x-request-id": "whole-1"})
        http.post(f"{running.url()}/sim/faults", json={"reset_after_tokens": 3})
        with pytest.raises(httpx.ReadError):
            http.post(url, json={**body, "stream": True}, headers={"x-request-id": "cut-1"})
        running.wait_for("cut-1")
        assert "received whole-1\n" in running.output
        assert '"POST /v1/chat/completions HTTP/1.1" 200 whole-1\n' in running.output
        running.wait_for('HTTP/1.1" 200 cut off cut-1')
