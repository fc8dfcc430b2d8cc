"""What simulated engines move over their fabric is counted by the adapters of every rank."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from llmgw.hardware.ports import read_ports
from llmgw.sim.engine_nccl import WORDS_A_TOKEN, WORDS_LOADED
from llmgw.sim.hardware import set_port, write_hardware
from llmgw.sim.hardware_traffic import carry
from tests.engines.running import Program, http, sim_engine
from tests.ports import free_port


def carried(hardware: Path) -> list[int]:
    """The words that each port has received so far."""
    return [port.counters["port_rcv_data"] or 0 for port in read_ports(hardware / "ib")]


def test_nothing_is_lost_when_several_count_at_a_time(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=0, adapters=1, node="node01")
    [before] = carried(node.directory)

    def count() -> None:
        for _ in range(50):
            carry(node.directory, "mlx5_0:1", sent_words=0, received_words=7)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert carried(node.directory) == [before + 4 * 50 * 7]


def test_a_port_without_a_cable_carries_nothing(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=0, adapters=1, node="node01")
    before = carried(node.directory)
    set_port(node.directory, "mlx5_0", "down")
    carry(node.directory, "mlx5_0", sent_words=4096, received_words=4096)
    assert carried(node.directory) == before


@pytest.mark.parametrize("nccl", ["ib", "socket"])
def test_each_token_moves_data_at_every_rank_and_none_over_tcp(tmp_path: Path, nccl: str) -> None:
    nodes = [write_hardware(tmp_path / name, gpus=0, adapters=2, node=name) for name in ("node01", "node02")]
    before = [carried(node.directory) for node in nodes]
    port = str(free_port())
    common = ["--nnodes", "2", "--group", "r1", "--rendezvous-host", "127.0.0.1", "--rendezvous-port", port]

    def rank(number: int) -> AbstractContextManager[Program]:
        return sim_engine(
            *common, "--rank", str(number), "--nccl-log", nccl, "--tokens-per-s", "2000",
            LLMGW_SIM_HARDWARE=str(nodes[number].directory), NCCL_IB_HCA="=mlx5_0:1,mlx5_1:1",
        )  # fmt: skip

    with rank(0) as leader, rank(1) as worker:
        worker.wait_for("serves nothing itself")
        body = {"model": "tiny", "prompt": "one two three", "max_tokens": 20}
        answer = http.post(f"{leader.url()}/v1/completions", json=body).json()
        tokens = answer["usage"]["total_tokens"]
        moved = WORDS_LOADED + tokens * WORDS_A_TOKEN // 2 if nccl == "ib" else 0
        wanted = [[count + moved for count in counts] for counts in before]
        deadline = time.monotonic() + 10
        while (now := [carried(node.directory) for node in nodes]) != wanted:
            assert time.monotonic() < deadline, (now, wanted)
            time.sleep(0.05)
