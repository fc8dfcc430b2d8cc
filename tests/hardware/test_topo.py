"""`nvidia-smi topo -m` in forms that nobody sent yet: cut, glued, contradicting itself, or something else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.hardware.topo import left_out, parse_topology

HEADING = "\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity\tNUMA Affinity\n"


def table(*rows: str) -> str:
    return HEADING + "".join(f"GPU{number}\t{row}\t0-7\t0\n" for number, row in enumerate(rows))


def test_pairs_joined_by_bridges_are_pairs() -> None:
    found = parse_topology(
        table(
            " X \tNV4\tSYS\tSYS\tPIX",
            "NV4\t X \tSYS\tSYS\tPXB",
            "SYS\tSYS\t X \tNV4\tSYS",
            "SYS\tSYS\tNV4\t X \tSYS",
        )
    )
    assert [found.nvlink_peers(gpu) for gpu in range(4)] == [[1], [0], [3], [2]]
    assert [found.nearest_nics(gpu) for gpu in range(4)] == [["mlx5_0"], ["mlx5_0"], [], []]
    assert found.through_switch(0) is None
    assert (found.problems, left_out(found)) == ([], [])


def test_a_row_that_was_cut_keeps_what_it_has_and_is_told() -> None:
    found = parse_topology(HEADING + "GPU0\t X \tNV18\tNV\n")
    assert found.paths[0] == {1: "NV18"}
    assert "in the row of GPU0 these paths could not be read: GPU2 (NV)" in found.problems
    assert "the row of GPU0 ends before GPU3" in found.problems
    assert any("the rows of GPU1, GPU2, GPU3 are missing" in problem for problem in found.problems)


def test_ends_that_contradict_each_other_are_told() -> None:
    found = parse_topology(
        table("X\tNV4\tSYS\tSYS\tSYS", "SYS\tX\tSYS\tSYS\tSYS", "SYS\tSYS\tX\tSYS\tSYS", "SYS\tSYS\tSYS\tX\tSYS")
    )
    assert found.problems == ["GPU0 says NV4 of GPU1, which says SYS of GPU0"]


def test_a_gpu_that_lost_its_nvlinks_among_linked_ones_is_told() -> None:
    found = parse_topology(
        table("X\tNV4\tNV4\tSYS\tPIX", "NV4\tX\tNV4\tSYS\tPIX", "NV4\tNV4\tX\tSYS\tPIX", "SYS\tSYS\tSYS\tX\tPIX")
    )
    assert left_out(found) == [3]
    assert found.problems == ["GPU3 has no NVLink, while all others are joined by NVLinks to each other"]


def test_columns_may_be_out_of_order() -> None:
    found = parse_topology("\tGPU1\tNIC0\tGPU0\tCPU Affinity\nGPU0\tNV4\tSYS\t X \t0\nGPU1\t X \tPIX\tNV4\t0\n")
    assert (found.gpus, found.paths) == ([0, 1], {0: {1: "NV4"}, 1: {0: "NV4"}})
    assert (found.nearest_nics(0), found.nearest_nics(1)) == ([], ["NIC0"])


@pytest.mark.parametrize("text", ["", "\n \n", "bash: nvidia-smi: command not found\n", "GPU 0: NVIDIA H100\n"])
def test_what_is_no_table_is_one_problem(text: str) -> None:
    found = parse_topology(text)
    assert (found.gpus, len(found.problems)) == ([], 1)


def test_a_command_line_and_windows_line_ends_before_the_table_do_no_harm() -> None:
    text = "\ufeff$ nvidia-smi topo -m\r\n" + "\tGPU0\tCPU Affinity\r\nGPU0\t X \t0-7\r\n"
    assert parse_topology(text).paths == {0: {}}


@given(st.text(alphabet="GPUNIC01 \tXSYV\nmlx5_:PB/A", max_size=300))
def test_no_text_raises(text: str) -> None:
    found = parse_topology(text)
    assert len(found.problems) <= 32
    for gpu in found.gpus:
        found.nearest_nics(gpu)
        found.nvlink_peers(gpu)
