"""Replicas of several nodes: who joins, who serves, and what the death of one means to the others."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.engines.running import Program, http, metric, sim_engine, until
from tests.ports import free_port


@pytest.fixture
def port() -> int:
    """A port that nobody has."""
    return free_port()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as each:
        yield each


def shard(stack: ExitStack, port: int, rank: int, nnodes: int, *more: str, group: str = "r1") -> Program:
    args = ["--group", group, "--rank", str(rank), "--nnodes", str(nnodes), *more]
    return stack.enter_context(
        sim_engine(
            *args, "--rendezvous-host", "127.0.0.1", "--rendezvous-port", str(port), LLMGW_SHARD=f"s{rank}"
        )
    )


def test_the_leader_serves_when_every_worker_has_joined_in_whatever_order(stack: ExitStack, port: int) -> None:
    early = shard(stack, port, 2, 3)
    leader = shard(stack, port, 0, 3)
    early.wait_for("rank 2 has joined")
    assert "listening" not in leader.output
    late = shard(stack, port, 1, 3)
    assert http.get(f"{leader.url()}/health").status_code == 200
    for worker in (early, late):
        worker.wait_for("serves nothing itself")
        assert "listening" not in worker.output


def test_a_rendezvous_that_does_not_complete_says_how_many_joined(stack: ExitStack, port: int) -> None:
    leader = shard(stack, port, 0, 4, "--rendezvous-timeout-s", "1.5")
    worker = shard(stack, port, 1, 4)
    assert leader.wait_exit() == 1
    assert leader.errors == "only 1 of 3 workers joined before the deadline\n"
    assert worker.wait_exit() == 1
    assert "gave up: only 1 of 3 workers joined before the deadline" in worker.errors


def test_a_worker_that_is_told_to_join_nobody_stays_and_its_leader_gives_up(stack: ExitStack, port: int) -> None:
    leader = shard(stack, port, 0, 2, "--never-join", "--rendezvous-timeout-s", "1")
    worker = shard(stack, port, 1, 2, "--never-join")
    worker.wait_for("rank 1 joins nobody")
    assert leader.wait_exit() == 1
    assert leader.errors == "only 0 of 1 workers joined before the deadline\n"
    worker.terminate()
    assert worker.wait_exit() == 0


def test_a_worker_without_a_leader_gives_up_at_its_deadline(stack: ExitStack, port: int) -> None:
    worker = shard(stack, port, 1, 2, "--rendezvous-timeout-s", "0.5")
    assert worker.wait_exit() == 1
    assert f"no leader answered at 127.0.0.1 port {port} before the deadline" in worker.errors


def test_the_death_of_a_worker_ends_the_leader_at_once_and_the_leader_its_workers(
    stack: ExitStack, port: int
) -> None:
    leader, first, second = (shard(stack, port, rank, 3) for rank in range(3))
    leader.url()
    second.kill()
    assert leader.wait_exit(2) == 1
    assert leader.errors == "the worker of rank 2 is gone; its connection has closed\n"
    assert first.wait_exit(2) == 1
    assert first.errors == f"the leader at 127.0.0.1 port {port} is gone; its connection has closed\n"


def test_a_worker_that_dies_while_the_leader_loads_or_waits_ends_it_too(stack: ExitStack, port: int) -> None:
    leader = shard(stack, port, 0, 2, "--load-s", "60")
    worker = shard(stack, port, 1, 2)
    leader.wait_for("loading")
    worker.kill()
    assert leader.wait_exit(2) == 1
    assert "rank 1 is gone" in leader.errors


def test_a_worker_of_another_replica_is_refused_and_harms_nobody(stack: ExitStack, port: int) -> None:
    leader = shard(stack, port, 0, 2)
    leader.wait_for("waiting")
    foreign = shard(stack, port, 1, 2, group="r2")
    assert foreign.wait_exit() == 1
    assert "this is the rendezvous of replica 'r1', and the worker belongs to 'r2'" in foreign.errors
    shard(stack, port, 1, 2)
    leader.url()
    late = shard(stack, port, 1, 2)
    assert late.wait_exit() == 1
    assert "rank 1 has joined already" in late.errors
    assert http.get(f"{leader.url()}/health").status_code == 200


def test_wrong_ranks_and_strangers_are_refused_with_a_sentence(stack: ExitStack, port: int) -> None:
    leader = shard(stack, port, 0, 2)
    leader.wait_for("waiting")
    greetings = {
        b"GET / HTTP/1.1\r\n\r\n": "no worker's greeting",
        b"\n": "no worker's greeting",
        b"[" * 5000 + b"\n": "no worker's greeting",
        b'{"group":"r1","rank":0,"nnodes":2}\n': "no rank 0",
        b'{"group":"r1","rank":true,"nnodes":2}\n': "no rank True",
        b'{"group":"r1","rank":1,"nnodes":3}\n': "2 shards, and the worker was started for 3",
    }
    for greeting, words in greetings.items():
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            sock.sendall(greeting)
            answer = sock.makefile().readline()
            assert words in json.loads(answer)["refused"]
    shard(stack, port, 1, 2)
    leader.url()


def test_a_busy_rendezvous_port_is_a_sentence(stack: ExitStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        leader = shard(stack, port, 0, 2)
        assert leader.wait_exit() == 1
        assert leader.errors.startswith(f"cannot listen on 127.0.0.1 port {port}: Address already in use")


@pytest.mark.parametrize("rank", [0, 1])
def test_the_shard_that_is_told_to_stop_ends_with_code_0(stack: ExitStack, port: int, rank: int) -> None:
    shards = [shard(stack, port, 0, 2), shard(stack, port, 1, 2)]
    shards[0].url()
    shards[1].wait_for("serves nothing itself")
    shards[rank].terminate()
    assert shards[rank].wait_exit(3) == 0
    assert shards[rank].errors == ""
    assert shards[1 - rank].wait_exit(3) == 1


def test_it_all_works_over_ipv6(stack: ExitStack) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6 loopback address ::1")
    args = ["--nnodes", "2", "--rendezvous-host", "::1", "--rendezvous-port", str(free_port("::1"))]
    leader = stack.enter_context(sim_engine("--host", "::1", "--rank", "0", *args))
    stack.enter_context(sim_engine("--rank", "1", *args))
    assert leader.url().startswith("http://[::1]:")
    assert http.get(f"{leader.url()}/v1/models").status_code == 200


def test_a_frozen_worker_holds_its_leader_up_until_it_goes_on(stack: ExitStack, port: int) -> None:
    leader = shard(stack, port, 0, 2, "--tokens-per-s", "50")
    worker = shard(stack, port, 1, 2)
    body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with http.stream("POST", f"{leader.url()}/v1/completions", json=body, timeout=90) as stream:
        pieces = stream.iter_bytes()
        next(pieces)
        worker.process.send_signal(signal.SIGSTOP)
        until(lambda: _generated(leader) == _generated(leader, after_s=0.7), "the leader stands still")
        worker.process.send_signal(signal.SIGCONT)
        assert b"[DONE]" in b"".join(pieces)


def _generated(leader: Program, after_s: float = 0.0) -> float:
    time.sleep(after_s)
    return metric(http.get(f"{leader.url()}/metrics").text, "vllm:generation_tokens_total")
