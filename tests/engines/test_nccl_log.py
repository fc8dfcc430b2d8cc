"""What NCCL says of the network it uses, in the words of real outputs."""

from __future__ import annotations

import pytest

from llmgw.engines.nccl_log import NcclFacts, NcclReader
from llmgw.sim.engine_nccl import nccl_lines

# As NCCL 2.19 on RoCE, 2.27 under vLLM, 2.4 on InfiniBand, and 2.18 without an adapter print them.
ROCE = """\
node04:460770:460842 [0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB eno1:10.1.0.14<0>
node04:460770:460842 [0] NCCL INFO Using non-device net plugin version 0
node04:460770:460842 [0] NCCL INFO Using network IB
"""
_CORE = "\x1b[36m(EngineCore pid=5020)\x1b[0;0m node08:5020:5020 [5] NCCL INFO "
VLLM = f"""\
{_CORE}NCCL version 2.27.3+cuda12.9
{_CORE}NET/IB : Using [0]mlx5_0:1/IB ; OOB eno1:10.0.0.8<0>
{_CORE}Initialized NET plugin IB
{_CORE}Assigned NET plugin IB to comm
{_CORE}Using network IB
node08:5020:5111 [5] NCCL INFO Channel 00/02 :    0   1
node08:5020:5111 [5] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0(1)/GDRDMA/Shared
node08:5020:5111 [5] NCCL INFO Channel 01 : 8[b1000] -> 7[18000] [receive] via NET/IB/0/GDRDMA
node08:5020:5111 [5] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
"""
SOCKET = """\
node05:1475:2146 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
node05:1475:2146 [0] NCCL INFO NET/IB : No device found.
node05:1475:2146 [0] NCCL INFO NET/Socket : Using [0]ens3:172.31.12.210<0>
node05:1475:2146 [0] NCCL INFO Using network Socket
node05:1481:2165 [3] NCCL INFO Channel 00 : 3[b1000] -> 4[18000] [send] via NET/Socket/0
"""


def facts(text: str, piece: int = 10**6) -> NcclFacts:
    reader = NcclReader()
    for start in range(0, len(text), piece):
        reader.read(text[start : start + piece])
    return reader.facts


@pytest.mark.parametrize("piece", [10**6, 7])
def test_infiniband_and_roce_are_recognised_with_their_adapters_however_output_is_cut(piece: int) -> None:
    roce = facts(ROCE, piece)
    assert (roce.networks, roce.channels, roce.adapters) == (
        frozenset({"IB"}),
        frozenset(),
        ("mlx5_10:1", "mlx5_11:1"),
    )
    infiniband = facts(VLLM, piece)
    assert (infiniband.channels, infiniband.adapters) == (frozenset({"IB"}), ("mlx5_0:1",))
    assert not roce.fell_back
    assert not infiniband.fell_back


@pytest.mark.parametrize("piece", [10**6, 7])
def test_sockets_are_a_fallback_and_the_line_that_says_so_is_kept(piece: int) -> None:
    found = facts(SOCKET, piece)
    assert found.fell_back
    assert found.no_adapter
    assert found.line == "Using network Socket"


def test_one_channel_over_tcp_among_others_is_a_fallback_and_a_bootstrap_over_sockets_is_none() -> None:
    one = "node08:5020:5111 [5] NCCL INFO Channel 02/0 : 7[7] -> 8[0] [send] via NET/Socket/1\n"
    assert facts(VLLM + one).fell_back
    # Older versions print the interface for their own start also where InfiniBand carries the rest.
    bootstrap = "master:20:289 [0] NCCL INFO NET/Socket : Using [0]ib0:192.168.11.1<0>\n"
    assert not facts(bootstrap + ROCE).fell_back
    # A second communicator, of ranks on one node, may choose sockets and never use them.
    assert not facts(VLLM + "n:1:1 [0] NCCL INFO Using network Socket\n").fell_back


def test_plugins_that_drive_the_same_adapters_count_as_infiniband_and_others_are_no_fallback() -> None:
    plugin = "n:1:1 [0] NCCL INFO Channel 00/0 : 3[3] -> 8[0] [send] via NET/IBext_v8/0/GDRDMA\n"
    assert facts(plugin).channels == {"IB"}
    other = "n:1:1 [0] NCCL INFO Channel 00 : 1[101d0] -> 8[101c0] [send] via NET/AWS Libfabric/0/GDRDMA\n"
    assert facts(other).channels == {"AWS Libfabric"}
    assert not facts(other).fell_back


def test_what_others_write_is_not_taken_for_nccl_and_long_lines_end_somewhere() -> None:
    assert facts("a user asked: [send] via NET/Socket/0\nUsing network Socket\n") == NcclFacts()
    assert facts("x" * 10**6 + "\n" + SOCKET).fell_back
    reader = NcclReader()
    for _ in range(100):
        reader.read("y" * 10**5)
    assert len(reader._rest) <= 4096


def test_the_simulated_engine_speaks_as_nccl_does() -> None:
    assert facts("\n".join(nccl_lines("ib", ["mlx5_0:1"], 1, 2)) + "\n").channels == {"IB"}
    assert facts("\n".join(nccl_lines("socket", [], 0, 2)) + "\n").fell_back
    assert nccl_lines("none", [], 0, 2) == []
