"""Reading maps: no text raises, what could not be used is counted, and every form gives the same facts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.fabric.ibnetdiscover import read_ibnetdiscover
from llmgw.fabric.report import analyse, report_fabric
from llmgw.fabric.topology import Topology, build_topology
from tests.fabric.generate import fat_tree, ring
from tests.hardware.samples import sample_files

PORT_LIST = """\
CA     4  1 0x0c42a10300000101 4x HDR - SW     2  1 0xb8cef60300a00001 ( 'node0001 mlx5_0' - 'leaf-1' )
CA     9  2 0x0c42a10300000102 4x HDR - SW     2  2 0xb8cef60300a00001 ( 'node0001 mlx5_0' - 'leaf-1' )
SW     2  1 0xb8cef60300a00001 4x HDR - CA     4  1 0x0c42a10300000101 ( 'leaf-1' - 'node0001 mlx5_0' )
SW     2  2 0xb8cef60300a00001 4x HDR - CA     9  2 0x0c42a10300000102 ( 'leaf-1' - 'node0001 mlx5_0' )
SW     2 37 0xb8cef60300a00001 4x ???                                    'leaf-1'
"""
SMALL = [path.read_bytes().decode("utf-8", "replace") for path in sample_files("ibnetdiscover", "*")]
TEXTS = [
    fat_tree(sharp=True, degraded=1).text(),
    fat_tree(nodes=4, leaves=2, rails=2, cores=1).text().replace("\n", "\r\n"),
    re.sub(r"\n\n+", "\n", ring().text()),
    PORT_LIST,
    *(text for text in SMALL if len(text) < 20_000),
]
MEANT = re.compile(r"\[\d|Switch|Ca|Rt|CA|SW|RT|Router")


def topology_of(text: str) -> Topology:
    return build_topology(read_ibnetdiscover(text))


def cables(topology: Topology) -> dict[tuple[str, int, str, int], str]:
    return {(link.a.id, link.a_port, link.b.id, link.b_port): link.rate_text for link in topology.links}


@st.composite
def text_and_line(draw: st.DrawFn) -> tuple[list[str], int]:
    lines = draw(st.sampled_from(TEXTS)).split("\n")
    return lines, draw(st.integers(0, len(lines) - 1))


@settings(max_examples=150, deadline=None)
@given(text_and_line())
def test_a_repeated_line_is_counted_and_changes_nothing(drawn: tuple[list[str], int]) -> None:
    lines, at = drawn
    whole, repeated = (
        topology_of("\n".join(lines)),
        topology_of("\n".join([*lines[: at + 1], lines[at], *lines[at + 1 :]])),
    )
    assert cables(repeated) == cables(whole)
    said_nothing = not lines[at].strip() or lines[at].startswith(("#", "Non-Chassis", "Chassis"))
    assert repeated.unread == whole.unread + (0 if said_nothing else 1)


@settings(max_examples=150, deadline=None)
@given(text_and_line())
def test_a_line_that_is_missing_shows(drawn: tuple[list[str], int]) -> None:
    lines, at = drawn
    whole, less = (
        topology_of("\n".join(lines)),
        topology_of("\n".join([*lines[:at], *lines[at + 1 :]])),
    )
    report_fabric(analyse("\n".join([*lines[:at], *lines[at + 1 :]])))
    if cables(less) != cables(whole):
        # The far end still tells of the cable, or the ports of the missing header belong to nobody.
        lost = cables(whole).keys() - cables(less).keys()
        one_sided = len(less.one_sided) > len(whole.one_sided)
        assert less.unread > whole.unread or one_sided or len(lost) <= 1


@settings(max_examples=300, deadline=None)
@given(text_and_line(), st.floats(0, 1, exclude_max=True))
def test_a_cut_line_is_counted_or_costs_no_cable(drawn: tuple[list[str], int], part: float) -> None:
    lines, at = drawn
    cut = lines[at][: int(len(lines[at]) * part)]
    text = "\n".join([*lines[:at], cut, *lines[at + 1 :]])
    whole, less = topology_of("\n".join(lines)), topology_of(text)
    report_fabric(analyse(text))
    if cut.strip() and MEANT.match(lines[at]) and cut.strip() != lines[at].strip():
        counted = less.unread > whole.unread or len(less.contradictions) > len(whole.contradictions)
        assert counted or cables(less) == cables(whole)


@settings(max_examples=200, deadline=None)
@given(
    st.text(
        alphabet=st.sampled_from('[](){}"#\tSHR-0123456789abcdefx: CaSwitchRtlidlmc=,\n\r\x1b\0é'), max_size=400
    )
)
def test_no_text_raises(text: str) -> None:
    report = report_fabric(analyse(text))
    assert report.links == sum(report.rates.values())


def test_a_header_that_is_missing_leaves_its_ports_to_nobody() -> None:
    lines = fat_tree().text().split("\n")
    at = next(number for number, line in enumerate(lines) if line.startswith("Switch"))
    ports = next(number for number, line in enumerate(lines[at + 1 :]) if not line)
    less = topology_of("\n".join([*lines[:at], *lines[at + 1 :]]))
    assert less.unread == ports
    assert len(less.one_sided) == ports


def test_a_redacted_header_that_is_cut_before_its_name_is_counted() -> None:
    text = re.sub(r"([0-9a-f]{6})[0-9a-f]{10}", r"\1<redacted>", fat_tree().text())
    lines = text.split("\n")
    at = next(number for number, line in enumerate(lines) if line.startswith("Switch"))
    cut = lines[at].partition("#")[0]
    whole, less = topology_of(text), topology_of("\n".join([*lines[:at], cut, *lines[at + 1 :]]))
    assert cables(less) != cables(whole)
    assert less.unread == whole.unread + 1


def test_colours_a_prompt_and_complaints_are_no_harm() -> None:
    text = fat_tree().text()
    dressed = (
        "\ufeff[root@mgmt ~]# ibnetdiscover\n"
        "\x1b[32mibwarn: [1234] mad_rpc: _do_madrpc failed; dport (Lid 7)\x1b[0m\n"
        + text.replace("Switch\t", "\x1b[1mSwitch\t")
    )
    plain, found = topology_of(text), topology_of(dressed)
    assert cables(found) == cables(plain)
    assert found.unread == 1
    assert found.unread_shown == ["line 1: [root@mgmt ~]# ibnetdiscover"]
    assert found.warnings == ["ibwarn: [1234] mad_rpc: _do_madrpc failed; dport (Lid 7)"]
    assert any(
        "may lack what it did not reach" in problem for problem in report_fabric(analyse(dressed)).problems
    )


def test_numbers_on_a_chassis_and_ibdiagnets_port_numbers_are_read() -> None:
    text = fat_tree(nodes=1, rails=1, leaves=1, spines=1, trunk=1).text()
    chassis = re.sub(r'^\[(\d+)\]\t"S', r'[\1][ext 7]\t"S', text, flags=re.MULTILINE).replace(
        "[1]\t\t# ", "[1][ext 3]\t\t# "
    )
    assert cables(topology_of(chassis)) == cables(topology_of(text))
    ibdiagnet = re.sub(r"\((c42a\w+)\)( ?)", r"(1)\2", text)
    assert cables(topology_of(ibdiagnet)) == cables(topology_of(text))
    assert topology_of(chassis).unread == topology_of(ibdiagnet).unread == 0


def test_two_ports_of_one_adapter_in_a_port_list_are_one_adapter() -> None:
    report = report_fabric(analyse(PORT_LIST))
    assert (report.form, report.switches, report.hcas, report.links, report.unconnected_ports) == (
        "ports",
        1,
        1,
        2,
        1,
    )


def test_a_rate_that_the_tool_could_not_name_is_unknown_and_not_slow() -> None:
    report = report_fabric(analyse(fat_tree().text().replace("4xNDR", "4x???")))
    assert report.rates == {"4x???": report.links}
    assert (report.slow, report.unread_lines) == ([], 0)
    assert any("before 49 cannot name XDR" in problem for problem in report.problems)


def test_two_devices_with_one_guid_are_told() -> None:
    made = fat_tree()
    made.adapters[1].guid = made.adapters[5].guid
    report = report_fabric(analyse(made.text()))
    assert report.duplicate_guids == [f"0x{made.adapters[1].guid:016x}"]
    assert report_fabric(analyse(fat_tree().text() * 2)).duplicate_guids == []


def test_cables_to_itself_and_islands_are_counted() -> None:
    made = fat_tree()
    made.join(made.switches[0], 50, made.switches[0], 51)
    alone = made.switch("alone")
    made.join(alone, 1, made.adapter("lost mlx5_0"), 1)
    report = report_fabric(analyse(made.text()))
    assert report.self_links == 1
    assert [(part.switches, part.hcas) for part in report.islands] == [(6, 32), (1, 1)]
    assert "the map falls into 2 parts that no cable joins" in report.problems


def test_two_ends_that_disagree_are_named() -> None:
    made = fat_tree()
    leaf = made.switches[0]
    port = max(leaf.cables)
    leaf.cables[port] = (*leaf.cables[port][:2], "4xHDR")
    report = report_fabric(analyse(made.text()))
    (said,) = report.disagreeing
    assert {said.rate_a, said.rate_b} == {"4xHDR", "4xNDR"}
    assert [slow.rate for slow in report.slow] == ["4xHDR"]


@pytest.mark.parametrize("text", ["", "\n\n", "#\n", "hello\n", "\0" * 5000, "[" * 100_000])
def test_a_text_without_a_map_says_so(text: str) -> None:
    report = report_fabric(analyse(text))
    assert (report.form, report.switches, report.links) == ("nothing", 0, 0)
    assert report.problems[0].startswith("there is no map in this text")
