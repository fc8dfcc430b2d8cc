"""How measurements between nodes are judged, in which order pairs are tested, and what the bad ones share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.fabric.bandwidth import Measured, RailEnd, judge
from llmgw.fabric.pairwise import in_common, rounds
from llmgw.fabric.tested import ages_s, passed_at
from llmgw.fabric.tested import test_doubts as doubts_of
from llmgw.messages.agent import Port
from llmgw.messages.fabric_test_views import FabricTestResult
from tests.hardware.samples import SAMPLES, WITHOUT_SAMPLES

DAY = 86400.0


def end(node: str = "node01", pcie: float | None = None, **port: Any) -> RailEnd:
    told = {"rate_gbps": 400.0, "rate_text": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand", **port}
    return RailEnd(node=node, port=Port(adapter="mlx5_0", port=1, **told), pcie_gbps=pcie)


def output(gbps: float) -> str:
    return (
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        f" 8388608    29610            0.00               {gbps:.2f}           0.005860\n"
    )


def judged(sender: RailEnd, receiver: RailEnd, text: str, code: int | None = 0, **more: Any) -> Measured:
    return judge(sender, receiver, output=text, exit_code=code, **{"error": None, **more})


@pytest.mark.parametrize(
    ("gbps", "grade"),
    [(399.0, "good"), (360.0, "good"), (359.9, "degraded"), (280.0, "degraded"), (279.9, "bad"), (0.01, "bad")],
)
def test_a_measurement_is_graded_by_its_share_of_the_limit(gbps: float, grade: str) -> None:
    found = judged(end(), end("node02"), output(gbps))
    assert (found.gbps, found.limit_gbps, found.limited_by, found.grade) == (gbps, 400.0, "the link", grade)


def test_the_limit_is_the_slowest_part_of_the_way() -> None:
    for sender, receiver, limit, what in (
        (end(), end("b", rate_gbps=200.0), 200.0, "the link"),
        (end(pcie=504.1), end("b", 252.1), 252.1, "the PCIe slot of mlx5_0 in b"),
        (end(pcie=126.0), end("b", 504.1), 126.0, "the PCIe slot of mlx5_0 in node01"),
        # A fifth of an InfiniBand QDR link is coding; a 40 Gb/s Ethernet port bears the same name.
        (end(rate_gbps=40.0, rate_text="40 Gb/sec (4X QDR)"), end("b"), 32.0, "the link"),
        (
            end(rate_gbps=40.0, rate_text="40 Gb/sec (4X QDR)", link_layer="Ethernet"),
            end("b"),
            40.0,
            "the link",
        ),
        (end(rate_gbps=None), end("b", 126.0, rate_gbps=None), 126.0, "the PCIe slot of mlx5_0 in b"),
    ):
        found = judged(sender, receiver, output(30.0))
        assert (found.limit_gbps, found.limited_by) == (limit, what)


def test_without_any_known_rate_nothing_is_called_good() -> None:
    found = judged(end(rate_gbps=None), end("b", rate_gbps=None), output(390.0))
    assert found.grade == "error"
    assert "it reached 390 Gb/s, and neither the links' rates nor the PCIe slots' are known" in found.words


def test_what_went_wrong_is_told_in_perftests_own_words_of_both_ends() -> None:
    failed = judged(
        end(),
        end("node02"),
        " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n",
        1,
        receiver_words="its ib_write_bw was ended by signal 11",
    )
    assert (failed.gbps, failed.grade) == (None, "error")
    assert failed.words == (
        "node01: Completion with error at client; Failed status 12: wr_id 0 syndrom 0x81; "
        "node02: its ib_write_bw was ended by signal 11"
    )
    assert judged(end(), end("b"), output(390.0), -11).words == "node01: ib_write_bw was ended by signal 11"
    assert judged(end(), end("b"), "", 3).words == "node01: ib_write_bw exited with 3 and printed nothing"
    hung = judged(end(), end("b"), "", None, error="ib_write_bw had not ended after 25 s and was killed")
    assert hung.words == "node01: ib_write_bw had not ended after 25 s and was killed"


def test_a_result_stands_when_the_program_failed_only_at_its_end() -> None:
    found = judged(end(), end("b"), output(390.0), 1)
    assert (found.grade, found.words) == ("good", "ib_write_bw exited with 1 after its result")


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=WITHOUT_SAMPLES)
def test_a_real_port_at_half_its_rate_is_judged_by_its_pcie_slot() -> None:
    text = (SAMPLES / "perftest" / "gb_run_infinitely_peak_zero.txt").read_text()
    port = {"rate_gbps": 200.0, "rate_text": "200 Gb/sec (4X HDR)", "link_layer": "Ethernet"}
    assert judged(end(**port), end("b", **port), text).grade == "bad"
    slot = judged(end(pcie=126.0, **port), end("b", 126.0, **port), text)
    assert (slot.gbps, slot.limit_gbps, slot.grade) == (92.57, 126.0, "degraded")


@given(st.integers(min_value=2, max_value=40))
def test_every_pair_is_met_once_and_no_node_twice_in_a_round(count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    walked = rounds(names)
    assert len(walked) == (count - 1 if count % 2 == 0 else count)
    pairs = [frozenset(pair) for pairs in walked for pair in pairs]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    for one in walked:
        assert len({node for pair in one for node in pair}) == 2 * len(one)


Bad = Callable[[tuple[str, str], tuple[str, str]], bool]


def results(bad: Bad, nodes: int = 4, test: str = "t", at: float = 0.0, grade: str = "bad") -> list[Any]:
    """All pairs of nodes n1, n2, … with two adapters, in both directions."""
    found = []
    for one, other in itertools.permutations([f"n{number}" for number in range(1, nodes + 1)], 2):
        for rail in (1, 2):
            sender, receiver = (one, f"mlx5_{rail - 1}:1"), (other, f"mlx5_{rail - 1}:1")
            wrong = bad(sender, receiver)
            found.append(
                FabricTestResult(
                    test_id=test,
                    at=at,
                    fabric="ib-a",
                    rail=rail,
                    sender=sender[0],
                    sender_port=sender[1],
                    receiver=receiver[0],
                    receiver_port=receiver[1],
                    gbps=100.0 if wrong else 390.0,
                    limit_gbps=400.0,
                    grade=grade if wrong else "good",  # type: ignore[arg-type]
                )
            )
    return found


def leaf(node: str, rail: int) -> str:
    return "0xL1" if node in ("n1", "n2") else "0xL2"


NAMES = {"0xL1": "leaf-01", "0xL2": "leaf-02"}


def test_what_bad_measurements_have_in_common_is_named() -> None:
    n3 = ("n3", "mlx5_1:1")
    cases: list[tuple[Bad, Callable[[str, int], str | None], str]] = [
        (lambda s, r: n3 in (s, r), lambda n, rail: None, "mlx5_1 of n3, or its cable: none of the 6"),
        (lambda s, r: n3 in (s, r), leaf, "mlx5_1 of n3, or its cable to leaf-02: none of the 6"),
        (lambda s, r: s == n3, lambda n, rail: None, "mlx5_1 of n3, or its cable, when sending: none of the 3"),
        (lambda s, r: r == n3, lambda n, rail: None, "mlx5_1 of n3, or its cable, when receiving: none of the 3"),
        (lambda s, r: "n2" in (s[0], r[0]), leaf, "n2 with all its adapters: none of the 12"),
        (lambda s, r: leaf(s[0], 1) != leaf(r[0], 1), leaf, "the cables from leaf switch leaf-0"),
        (lambda s, r: s[1] == "mlx5_0:1", lambda n, rail: f"rail{rail}", "leaf switch rail1: none of the 12"),
    ]
    for bad, leaf_of, says in cases:
        [sentence] = in_common(results(bad), leaf_of, NAMES)
        assert sentence.startswith(says), sentence


def test_two_faults_are_two_sentences_and_the_rest_is_told() -> None:
    def bad(sender: tuple[str, str], receiver: tuple[str, str]) -> bool:
        lone = (sender[0], receiver[0]) == ("n1", "n2") and sender[1] == "mlx5_0:1"
        return ("n4", "mlx5_1:1") in (sender, receiver) or sender == ("n3", "mlx5_0:1") or lone

    told = in_common(results(bad))
    assert [sentence.split(":")[0] for sentence in told[:2]] == [
        "mlx5_1 of n4, or its cable",
        "mlx5_0 of n3, or its cable, when sending",
    ]
    assert told[2:] == ["1 measurement that is not good has nothing in common with others"]


def test_where_all_is_good_nobody_is_blamed_and_two_nodes_have_nothing_to_compare() -> None:
    assert in_common(results(lambda s, r: False)) == []
    assert in_common(results(lambda s, r: True, nodes=2)) == [
        "4 measurements that are not good have nothing in common"
    ]


def test_the_broken_adapter_is_in_doubt_and_its_partners_are_not() -> None:
    doubts = doubts_of(results(lambda s, r: ("n3", "mlx5_1:1") in (s, r)), now=DAY)
    assert list(doubts) == [("n3", "ib-a")]
    assert doubts["n3", "ib-a"].startswith("mlx5_1:1 reached only 100 of 400 Gb/s in the fabric test with n")


def test_a_later_good_test_clears_a_node_and_an_old_bad_one_is_forgotten() -> None:
    bad = results(lambda s, r: True, nodes=2)
    assert set(doubts_of(bad, now=DAY)) == {("n1", "ib-a"), ("n2", "ib-a")}
    assert doubts_of([*bad, *results(lambda s, r: False, nodes=2, test="u", at=1.0)], now=DAY) == {}
    assert doubts_of(bad, now=8 * DAY) == {}
    degraded = results(lambda s, r: True, nodes=2, grade="degraded")
    assert doubts_of(degraded, now=DAY) == {}


def test_a_run_that_was_ended_before_it_was_done_passes_nobody() -> None:
    # As a test of two nodes goes: all rails one way, then all the other.
    run = sorted(results(lambda s, r: False, nodes=2), key=lambda result: (result.sender, result.rail))
    assert len(run) == 4
    for done in range(4):
        assert passed_at(run[:done], now=DAY) == {}
    assert set(passed_at(run, now=DAY)) == {("n1", "ib-a"), ("n2", "ib-a")}
    # Two halves of two runs are no whole one.
    later = [msgspec.structs.replace(result, test_id="u") for result in run]
    assert passed_at([*run[:2], *later[2:]], now=DAY) == {}


def test_a_node_has_passed_when_one_whole_run_with_another_was_good() -> None:
    mixed = results(lambda s, r: ("n3", "mlx5_1:1") in (s, r), at=5.0)
    assert passed_at(mixed, now=DAY) == {("n1", "ib-a"): 5.0, ("n2", "ib-a"): 5.0, ("n4", "ib-a"): 5.0}
    degraded = results(lambda s, r: s[1] == "mlx5_0:1", nodes=2, grade="degraded")
    assert passed_at(degraded, now=DAY) == {}
    # A later failure shuts the door again.
    good, failed = results(lambda s, r: False, nodes=2), results(lambda s, r: True, nodes=2, test="u", at=9.0)
    assert passed_at([*good, *failed], now=DAY) == {}
    assert ages_s({("n1", "ib-a"): 100.0}, now=40.0) == {("n1", "ib-a"): 0.0}


def test_a_refused_command_line_is_told_without_the_help_that_follows_it() -> None:
    # As perftest 6.06 prints it: the help on standard output, the complaint on standard error.
    text = (
        "Options:\n  -u, --qp-timeout=<timeout>  QP timeout, timeout value is 4 usec * 2 ^(timeout), default 14\n"
        "        Note (1): pps not supported with HW limit.\n\n"
        "ib_write_bw: unrecognized option '--ipv6-addr'\n Invalid Command or flag.\n"
        " Please check command line and run again.\n\n Parser function exited with Error\n"
    )
    words = judged(end(), end("b"), text, 1).words
    assert words == "node01: ib_write_bw: unrecognized option '--ipv6-addr'; Invalid Command or flag."
