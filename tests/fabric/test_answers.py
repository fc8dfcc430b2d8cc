"""Managers and perftest: answers that no sample has, cut text, and text of something else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.fabric.managers import read_managers
from llmgw.fabric.perftest import read_bandwidth

RECORD = """SMInfoRecord dump:
\t\tRID
\t\tLID...................{lid}
\t\tSMInfo dump:
\t\tGUID..................0x{guid:016x}
\t\tSM_Key................0x0000000000000000
\t\tActCount..............1059
\t\tPriority..............{priority}
\t\tSMState...............{state}
"""
TABLE = """---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 32768      5000             20000.00            20000.00             0.64
 65536      5000             24000.00            23841.86             0.38
---------------------------------------------------------------------------------------
"""


def smir(*managers: tuple[int, int, int]) -> str:
    return "".join(
        RECORD.format(lid=at + 1, guid=guid, priority=priority, state=state)
        for at, (guid, priority, state) in enumerate(managers)
    )


def test_standbys_are_listed_by_who_comes_next() -> None:
    found = read_managers(smir((9, 3, 2), (4, 14, 3), (8, 12, 2), (7, 12, 2)))
    assert found.master is not None
    assert found.master.guid == "0x0000000000000004"
    assert [standby.guid[-1] for standby in found.standbys if standby.guid] == ["7", "8", "9"]
    assert (found.problems, found.guids) == ([], {4, 7, 8, 9})


def test_two_masters_none_and_managers_that_do_not_manage_are_problems() -> None:
    assert read_managers(smir((1, 3, 3), (2, 3, 3), (3, 1, 2))).problems == [
        "2 masters: 0x0000000000000001, 0x0000000000000002"
    ]
    choosing = read_managers(smir((1, 3, 2), (2, 3, 1)))
    assert (choosing.master, choosing.answer) == (None, "ok")
    assert choosing.problems == [
        "no master among the managers: one is being chosen",
        "the manager 0x0000000000000002 is discovering",
    ]


@pytest.mark.parametrize(
    ("text", "answer", "words"),
    [
        ("", "unknown", "there is nothing to read"),
        ("hello\n", "unknown", "this is no output of saquery SMIR or sminfo: hello"),
        ("ibpanic: [9] main: umad_init: Permission denied\n", "unknown", "run it as root"),
        ("bash: saquery: command not found\n", "unknown", "install infiniband-diags"),
        ("saquery: unrecognized option '--smir'\n", "unknown", "ask saquery SMIR"),
    ],
)
def test_what_is_no_answer_is_never_no_manager(text: str, answer: str, words: str) -> None:
    found = read_managers(text)
    assert found.answer == answer
    assert words in found.problems[0]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 800))
def test_a_cut_list_loses_a_record_and_says_so(size: int) -> None:
    text = smir((1, 3, 3), (2, 3, 2))
    cut, whole = read_managers(text[:size]), read_managers(text)
    if cut.guids != whole.guids:
        assert cut.problems


def test_a_result_is_read_by_its_heading() -> None:
    assert read_bandwidth(TABLE).gbps == pytest.approx(200.0, abs=0.001)
    more = TABLE.replace("#iterations ", "#iterations  #sl ").replace("5000  ", "5000  3 ")
    assert read_bandwidth(more).gbps == pytest.approx(200.0, abs=0.001)
    assert read_bandwidth(TABLE.replace("MiB/sec", "Gb/sec").replace("23841.86", "191.3")).gbps == 191.3


def test_a_run_that_failed_after_its_first_rows_is_a_failure() -> None:
    failed = TABLE + " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n"
    assert (read_bandwidth(failed).gbps, read_bandwidth(failed).error) == (
        None,
        "Completion with error at client; Failed status 12: wr_id 0 syndrom 0x81",
    )


def test_a_negative_average_is_no_result() -> None:
    found = read_bandwidth(TABLE.replace("23841.86", "-4.77"))
    assert found.gbps is None
    assert "-4.77" in (found.error or "")


@pytest.mark.parametrize(
    ("text", "read", "words"),
    [
        ("", False, "there is nothing to read"),
        ("hello\n", False, "this is no output of perftest: hello"),
        (
            "\n****\n* Waiting for client to connect... *\n****\n",
            True,
            "perftest printed its heading and no result",
        ),
        (TABLE.split(" 32768")[0], True, "its heading and no result"),
        ('{"results": {"MsgSize": 65536', True, "the JSON of perftest was cut"),
        ('{"results": ' + "[" * 100_000, True, "the JSON of perftest was cut"),
        ('{"a": 1}', False, "no result of perftest"),
    ],
)
def test_what_is_no_result_is_a_sentence(text: str, read: bool, words: str) -> None:
    found = read_bandwidth(text)
    assert (found.gbps, found.read) == (None, read)
    assert words in (found.error or "")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300), st.sampled_from(["", TABLE, "{", smir((1, 2, 3))]), st.integers(0, 400))
def test_no_text_raises(text: str, before: str, cut: int) -> None:
    for read in (read_managers, read_bandwidth):
        read(before[:cut] + text)
        read(text + before[:cut])
