"""How a simulated engine ends when it is told to."""

from __future__ import annotations

import signal
import socket
from typing import Any

import pytest

from tests.engines.running import Program, http, sim_engine, until

LONG: dict[str, Any] = {"prompt": "hello", "max_tokens": 30_000, "ignore_eos": True, "stream": True}


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # queued on the listener when that was closed
        return False
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_engine_ends_with_code_0(number: signal.Signals) -> None:
    with sim_engine() as running:
        http.get(f"{running.url()}/health")
        running.process.send_signal(number)
        assert running.wait_exit(3) == 0
        assert running.errors == ""


def test_an_engine_that_loads_ends_with_code_0() -> None:
    with sim_engine("--load-s", "60") as running:
        running.wait_for("loading")
        running.terminate()
        assert running.wait_exit(3) == 0


def test_streams_are_aborted_at_once_and_say_so() -> None:
    with sim_engine() as running:
        with http.stream("POST", f"{running.url()}/v1/completions", json=LONG) as stream:
            pieces = stream.iter_bytes()
            next(pieces)
            running.terminate()
            rest = b"".join(pieces)
        assert b'"finish_reason":"abort"' in rest
        assert rest.endswith(b"data: [DONE]\n\n")
        assert running.wait_exit(3) == 0


def test_a_shutdown_timeout_lets_streams_finish_while_nobody_new_gets_in() -> None:
    with sim_engine("--shutdown-timeout-s", "30") as running:
        body = {**LONG, "max_tokens": 60}
        with http.stream("POST", f"{running.url()}/v1/completions", json=body) as stream:
            pieces = stream.iter_bytes()
            next(pieces)
            running.terminate()
            until(lambda: refused(running.port()), "new connections to be refused")
            rest = b"".join(pieces)
        assert b'"finish_reason":"length"' in rest
        assert rest.endswith(b"data: [DONE]\n\n")
        assert running.wait_exit(5) == 0


def test_a_shutdown_timeout_that_is_over_aborts_the_rest() -> None:
    with sim_engine("--shutdown-timeout-s", "0.3") as running:
        with http.stream("POST", f"{running.url()}/v1/completions", json=LONG) as stream:
            pieces = stream.iter_bytes()
            next(pieces)
            running.terminate()
            assert b'"finish_reason":"abort"' in b"".join(pieces)
        assert running.wait_exit(3) == 0


def test_a_second_signal_cuts_the_waiting_short() -> None:
    with sim_engine("--shutdown-timeout-s", "60") as running:
        with http.stream("POST", f"{running.url()}/v1/completions", json=LONG) as stream:
            pieces = stream.iter_bytes()
            next(pieces)
            running.terminate()
            until(lambda: refused(running.port()), "new connections to be refused")
            running.terminate()
            assert b'"finish_reason":"abort"' in b"".join(pieces)
        assert running.wait_exit(3) == 0


def test_a_client_that_reads_nothing_does_not_hold_the_engine() -> None:
    with sim_engine("--tokens-per-s", "1000000") as running, _silent_client(running):
        running.terminate()
        assert running.wait_exit(5) == 0


def _silent_client(running: Program) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", running.port()))
    body = b'{"prompt":"x","max_tokens":30000,"ignore_eos":true,"stream":true,"n":16}'
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    sock.recv(1)
    return sock
