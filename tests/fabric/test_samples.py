"""Real fabrics, managers and perftest runs, read as their index says, where they lie beside the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.fabric.managers import read_managers
from llmgw.fabric.perftest import read_bandwidth
from llmgw.fabric.report import FabricReport, analyse, report_fabric
from tests.hardware.samples import SAMPLES, WITHOUT_SAMPLES, sample_files

pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason=WITHOUT_SAMPLES)

SIM = {"4xHDR": 18, "2xHDR": 1, "1xHDR": 1, "4xEDR": 2, "4xFDR": 2}
# File → (switches, hcas, sharp, routers, rates, leaf/spine/core, slow, unnamed, unread lines).
FABRICS: dict[str, tuple[Any, ...]] = {
    "ndr_superpod_sharp_mixed_desc": (40, 542, 40, 0, {"4xNDR": 1114}, (31, 9, 0), 0, 69, 0),
    "gb200_single_ca_no_link": (0, 1, 0, 0, {}, (0, 0, 0), 0, 0, 0),
    "hdr_superpod_3tier_bom_crlf_prompt": (206, 1130, 206, 0, {"4xHDR": 3572}, (58, 106, 42), 0, 0, 1),
    "edr_director_cs7500_3tier": (174, 1470, 174, 0, {"4xEDR": 3443}, (84, 54, 36), 0, 0, 0),
    "edr_small_sharp_crlf": (4, 8, 4, 0, {"4xEDR": 16}, (4, 0, 0), 0, 0, 0),
    "edr_small_bad_lids": (4, 8, 4, 0, {"4xEDR": 16}, (4, 0, 0), 0, 0, 0),
    "edr_one_ddr_trunk_no_blank_lines": (6, 96, 0, 0, {"4xEDR": 143, "4xDDR": 1}, (4, 2, 0), 1, 0, 0),
    "ndr_split_2xndr_redacted_excerpt": (1, 5, 0, 0, {"2xNDR": 5}, (1, 0, 0), 0, 0, 3),
    "qdr_hosts_fdr10_trunks_2014": (8, 144, 0, 0, {"4xQDR": 145, "4xFDR10": 47}, (7, 1, 0), 0, 0, 0),
    "hdr_full_f_option_azure_faked": (8, 10, 1, 0, {"4xHDR": 18}, (5, 2, 1), 0, 0, 0),
    "edr_generated_k4n3_no_hostnames": (80, 128, 0, 0, {"4xEDR": 384}, (32, 32, 16), 0, 128, 0),
    "ports_p_edr_down_ports": (4, 3, 0, 0, {"4xEDR": 4}, (2, 1, 0), 0, 0, 0),
    "ports_p_unquoted_name": (1, 0, 0, 0, {}, (0, 0, 0), 0, 0, 0),
    "sim_hdr_router_no_sm_lid0": (5, 10, 1, 1, {**SIM, "4xSDR": 1}, (3, 2, 0), 7, 1, 0),
    "sim_full_f": (5, 10, 1, 1, {**SIM, "4xQDR": 1}, (3, 2, 0), 7, 1, 0),
    "sim_grouped_g": (5, 10, 1, 1, {**SIM, "4xQDR": 1}, (3, 2, 0), 7, 1, 0),
    "sim_max_hops_m": (5, 10, 1, 1, {**SIM, "4xQDR": 1}, (3, 2, 0), 7, 1, 0),
    # Without device ids only switches' products tell what a cable could do.
    "sim_ports_p_router": (5, 10, 1, 1, {**SIM, "4xQDR": 1}, (3, 2, 0), 2, 1, 0),
    "sim_list_l": (5, 10, 1, 1, {}, (0, 0, 0), 0, 1, 0),
}

MASTER_401 = ("0x0c42a10300000401", 1, 14)
STANDBY_501 = ("0x0c42a10300000501", 7, 12)
# File → (master, standbys, answer, words of each problem).
MANAGERS: dict[str, tuple[Any, ...]] = {
    "smir_two_master_standby": (MASTER_401, [STANDBY_501], "ok", []),
    "smir_after_failover_one": (STANDBY_501, [], "ok", ["no standby"]),
    "smir_during_failover_stderr": (None, [], "unknown", ["Query SA failed: Connection timed out"]),
    "smir_no_sm_stderr": (None, [], "none", ["no subnet manager on this port"]),
    "sminfo_no_sm": (None, [], "none", ["no subnet manager on this port"]),
    "sminfo_during_failover": (None, [], "unknown", ["_do_madrpc failed; dport (Lid 1)"]),
    "saquery_dash_s_issm_ports": ((None, 4, None), [(None, 1, None)], "ok", ["save saquery SMIR instead"]),
    "sminfo_real_master_prio0": (("0x0002c90200259201", 2, 0), [], "ok", []),
    "sminfo_real_master_prio14": (("0x0010e0406d009ca0", 15, 14), [], "ok", []),
    "sminfo_real_master_prio15": (("0x248a070300c63d96", 3, 15), [], "ok", []),
}

# File → (Gb/s, bytes of the largest message, unit that was printed, words of the error, both directions).
BANDWIDTHS: dict[str, tuple[Any, ...]] = {
    "mb_loopback_both_ends_interleaved": (201.80, 8388608, "MiB/s", None, False),
    "gb_roce_conflicting_cpu_in_table": (92.40, 65536, "Gb/s", None, False),
    "gb_run_infinitely_peak_zero": (92.57, 65536, "Gb/s", None, False),
    "gb_send_bw_all_sizes_hdr200": (196.69, 8388608, "Gb/s", None, False),
    "mib_2024_new_heading_lockfree": (92.53, 65536, "MiB/s", None, False),
    "mb_softroce_conflicting": (0.925, 65536, "MiB/s", None, False),
    "gb_three_qps_duration_peak_zero": (363.47, 65536, "Gb/s", None, False),
    "mb_read_bw_conflicting_100g": (87.26, 65536, "MiB/s", None, False),
    "gb_bidirectional_excerpt": (213.05, 1048576, "Gb/s", None, True),
    "json_out_mib_unlabelled": (18.70, 65536, "MiB/s", None, False),
    "fail_couldnt_connect_old_joined_line": (
        None,
        None,
        None,
        "Couldn't connect to 192.168.125.211:18515",
        False,
    ),
    "fail_device_not_found": (None, None, None, "IB device rxe2 not found", False),
    "fail_port_down_vf": (None, None, None, "Port number 1 state is Down", False),
    "fail_local_no_devices": (None, None, None, "Did not detect devices", False),
}


def text_of(folder: str, name: str) -> str:
    return (SAMPLES / folder / f"{name}.txt").read_bytes().decode("utf-8", "replace")


def report_of(name: str) -> FabricReport:
    return report_fabric(analyse(text_of("ibnetdiscover", name)))


@pytest.mark.parametrize(
    ("folder", "answers"), [("ibnetdiscover", FABRICS), ("sm", MANAGERS), ("perftest", BANDWIDTHS)]
)
def test_every_file_has_its_answer_here(folder: str, answers: dict[str, Any]) -> None:
    assert {path.stem for path in sample_files(folder, "*")} == set(answers)


@pytest.mark.parametrize("name", sorted(FABRICS))
def test_a_real_fabric_is_read_right(name: str) -> None:
    report = report_of(name)
    switches, hcas, sharp, routers, rates, (leaf, spine, core), slow, unnamed, unread = FABRICS[name]
    assert (report.switches, report.hcas, report.sharp, report.routers) == (switches, hcas, sharp, routers)
    assert report.rates == rates
    assert report.links == sum(rates.values())
    assert report.tiers == {"leaf": leaf, "spine": spine, "core": core}
    assert (len(report.slow), report.unnamed_hcas, report.unread_lines) == (slow, unnamed, unread)
    assert (report.self_links, report.disagreeing, report.duplicate_guids) == (0, [], [])


def test_the_one_slow_cable_of_a_real_fabric_is_named() -> None:
    (slow,) = report_of("edr_one_ddr_trunk_no_blank_lines").slow
    assert {(slow.a.guid, slow.a.port), (slow.b.guid, slow.b.port)} == {
        ("0xec0d9a0300b6b880", 11),
        ("0xec0d9a0300b6be00", 11),
    }
    assert (slow.rate, slow.expected, slow.fault) == ("4xDDR", "4xEDR", "speed")
    assert "20 of 100 Gb/s" in slow.why


def test_speed_and_width_are_told_apart() -> None:
    slow = {(cable.rate, cable.fault) for cable in report_of("sim_hdr_router_no_sm_lid0").slow}
    assert slow == {
        *{("4xEDR", "speed"), ("4xFDR", "speed"), ("4xSDR", "speed")},
        *{("2xHDR", "width"), ("1xHDR", "width")},
    }


def test_the_one_swapped_pair_of_a_real_superpod_is_named() -> None:
    report = report_of("ndr_superpod_sharp_mixed_desc")
    assert [(rail.labels, rail.aligned) for rail in report.rails] == [
        (["HCA-1", "mlx5_0"], True),
        (["HCA-2", "mlx5_1"], True),
        (["HCA-5", "mlx5_4"], True),
        (["HCA-6", "mlx5_5"], True),
    ]
    (swap,) = report.rail_swaps
    assert swap.adapters == ("HCA-5", "HCA-6")
    assert swap.leaves == ("MF0;sw-leaf-012:MQM9701/U1", "MF0;sw-leaf-014:MQM9701/U1")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gb200_single_ca_no_link", "this node sees only itself"),
        ("sim_list_l", "this is a list of nodes"),
        ("ndr_split_2xndr_redacted_excerpt", "the GUIDs of 6 nodes cannot be read"),
        ("hdr_full_f_option_azure_faked", "1 of 18 cables are told by one end only"),
    ],
)
def test_what_a_real_text_lacks_is_a_sentence(name: str, words: str) -> None:
    assert any(words in problem for problem in report_of(name).problems)


def test_unconnected_ports_of_a_port_list_are_no_cables() -> None:
    assert report_of("sim_ports_p_router").unconnected_ports == 168
    assert report_of("ports_p_edr_down_ports").unconnected_ports == 2


@pytest.mark.parametrize("name", sorted(MANAGERS))
def test_real_answers_of_managers_are_read_right(name: str) -> None:
    found = read_managers(text_of("sm", name))
    master, standbys, answer, words = MANAGERS[name]
    assert (None if found.master is None else msgspec.structs.astuple(found.master)) == master
    assert [msgspec.structs.astuple(one) for one in found.standbys] == standbys
    assert found.answer == answer
    assert len(found.problems) == len(words)
    assert all(word in problem for word, problem in zip(words, found.problems, strict=True))


@pytest.mark.parametrize("name", sorted(BANDWIDTHS))
def test_a_real_run_of_perftest_is_read_right(name: str) -> None:
    found = read_bandwidth(text_of("perftest", name))
    gbps, size, unit, words, both = BANDWIDTHS[name]
    assert found.gbps == (None if gbps is None else pytest.approx(gbps, abs=0.01))
    assert (found.message_bytes, found.unit_read, found.bidirectional) == (size, unit, both)
    assert found.error is None if words is None else words in (found.error or "")


def test_two_messages_on_one_line_are_two() -> None:
    error = read_bandwidth(text_of("perftest", "fail_couldnt_connect_old_joined_line")).error or ""
    assert error.endswith(
        "Unable to open file descriptor for socket connection; Unable to init the socket connection"
    )


@pytest.mark.parametrize("path", sample_files("ibnetdiscover", "*"), ids=lambda path: path.stem)
def test_a_real_map_cut_anywhere_is_read(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", "replace")
    for part in (1, 4, 7, 10, 13):
        report_fabric(analyse(text[: len(text) * part // 14]))
