"""nvidia-smi's CSV becomes GPUs and findings, and no odd line costs another GPU."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmgw.hardware.nvidia_smi import QUERY_FIELDS, invalid_field, parse_gpus, query_args
from llmgw.hardware.nvidia_smi_exits import explain_exit
from llmgw.messages.agent import GPUS_PER_NODE_MAX

HEADING = (
    "index, uuid, name, pci.bus_id, driver_version, memory.total [MiB], memory.used [MiB], "
    "utilization.gpu [%], temperature.gpu, mig.mode.current, ecc.errors.uncorrected.volatile.total, "
    "remapped_rows.failure, gpu_recovery_action"
)


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-1111-2222-3333-444455556666"


def row(index: int = 0, **cells: str) -> str:
    values = {
        "index": str(index),
        "uuid": uuid(index),
        "name": "NVIDIA H100 80GB HBM3",
        "bus": f"00000000:{index:02X}:00.0",
        "driver": "590.48.01",
        "total": "81559 MiB",
        "used": "12 MiB",
        "utilization": "3 %",
        "temperature": "41",
        "mig": "Disabled",
        "ecc": "0",
        "remap": "No",
        "action": "None",
    }
    assert cells.keys() <= values.keys()
    return ", ".join((values | cells).values())


def table(*rows: str) -> str:
    return "\n".join([HEADING, *rows]) + "\n"


def test_a_healthy_row_is_read_whole() -> None:
    read = parse_gpus(table(row(3)))
    assert read.findings == []
    (gpu,) = read.gpus
    assert (gpu.index, gpu.uuid, gpu.name) == (3, uuid(3), "NVIDIA H100 80GB HBM3")
    assert (gpu.memory_total_mib, gpu.memory_used_mib) == (81559, 12)
    assert (gpu.utilization_percent, gpu.temperature_c) == (3, 41)
    assert (gpu.pci_bus_id, gpu.driver_version) == ("00000000:03:00.0", "590.48.01")
    assert (gpu.mig, gpu.usable, gpu.reason) == (False, True, None)


def test_columns_are_found_by_the_heading_in_whatever_order() -> None:
    (gpu,) = parse_gpus(f"memory.used [MiB], gpu_name, uuid, index\n7 MiB, NVIDIA L40S, {uuid(1)}, 5\n").gpus
    assert (gpu.index, gpu.uuid, gpu.name, gpu.memory_used_mib) == (5, uuid(1), "NVIDIA L40S", 7)


def test_units_may_be_missing() -> None:
    (gpu,) = parse_gpus(
        f"index, uuid, name, memory.total, utilization.gpu\n0, {uuid(0)}, NVIDIA H200, 143771, 98\n"
    ).gpus
    assert (gpu.memory_total_mib, gpu.utilization_percent) == (143771, 98)


@pytest.mark.parametrize(
    "word",
    [
        "[N/A]",
        "N/A",
        "[Not Supported]",
        "[Insufficient Permissions]",
        "[Requested functionality has been deprecated]",
        "",
        "-5",
        "99999999999999999999999 MiB",
        "many",
    ],
)
def test_a_word_for_unknown_is_none_and_never_zero(word: str) -> None:
    (gpu,) = parse_gpus(table(row(total=word, used=word, utilization=word, temperature=word, ecc=word))).gpus
    assert gpu.usable
    assert (gpu.memory_total_mib, gpu.memory_used_mib) == (None, None)
    assert (gpu.utilization_percent, gpu.temperature_c) == (None, None)


def test_a_gpu_that_needs_a_reset_is_not_usable_and_not_idle() -> None:
    read = parse_gpus(table(row(0, temperature="[GPU requires reset]", used="0 MiB"), row(1)))
    broken, whole = read.gpus
    assert (broken.usable, broken.unusable_kind) == (False, "broken")
    assert "reset" in (broken.reason or "")
    assert broken.memory_used_mib is None
    assert whole.usable


@pytest.mark.parametrize("action", ["Reset", "Reboot", "Drain P2P", "Drain and Reset"])
def test_a_recovery_action_of_the_driver_takes_a_gpu_out(action: str) -> None:
    (gpu,) = parse_gpus(table(row(action=action))).gpus
    assert not gpu.usable
    assert action in (gpu.reason or "")
    assert ("nvidia-smi -i 0 --gpu-reset" in (gpu.reason or "")) == (action != "Reboot")


def test_uncorrectable_memory_errors_take_a_gpu_out() -> None:
    (gpu,) = parse_gpus(table(row(ecc="2"))).gpus
    assert not gpu.usable
    assert "2 uncorrectable memory errors" in (gpu.reason or "")
    assert "nvidia-smi -i 0 --gpu-reset" in (gpu.reason or ""), "and not every GPU of the node"
    (gpu,) = parse_gpus(table(row(ecc="1"))).gpus
    assert "1 uncorrectable memory error (" in (gpu.reason or "")


def test_a_failed_row_remapping_takes_a_gpu_out() -> None:
    (gpu,) = parse_gpus(table(row(remap="Yes"))).gpus
    assert not gpu.usable


@pytest.mark.parametrize("word", ["[Unknown Error]", "ERR!", "[GPU is lost]"])
@pytest.mark.parametrize("cell", ["uuid", "name", "total", "used"])
def test_an_error_in_place_of_identity_or_memory_takes_a_gpu_out(cell: str, word: str) -> None:
    broken, whole = parse_gpus(table(row(0, **{cell: word}), row(1))).gpus
    assert not broken.usable
    assert word in (broken.reason or "")
    assert whole.usable


def test_a_gpu_without_a_uuid_is_not_usable() -> None:
    (gpu,) = parse_gpus(table(row(uuid="[N/A]"))).gpus
    assert (gpu.usable, gpu.uuid) == (False, "")
    assert "UUID" in (gpu.reason or "")


def test_mig_is_noted() -> None:
    (gpu,) = parse_gpus(table(row(mig="Enabled", utilization="[N/A]"))).gpus
    assert gpu.mig is True
    assert gpu.utilization_percent is None


def test_an_error_line_between_rows_is_a_finding_and_the_rows_around_it_stay() -> None:
    read = parse_gpus(
        table(
            row(0),
            "Unable to determine the device handle for GPU0000:02:00.0: Unknown Error",
            ", ".join(["[Unknown Error]"] * len(QUERY_FIELDS)),
            row(2),
        )
    )
    assert [gpu.index for gpu in read.gpus] == [0, 2]
    assert [(finding.check, finding.what) for finding in read.findings] == [
        ("gpu-lost", "0000:02:00.0 is lost: Unknown Error")
    ]


def test_a_row_of_nothing_but_errors_is_a_lost_gpu() -> None:
    read = parse_gpus(table(row(0), ", ".join(["[Unknown Error]"] * len(QUERY_FIELDS))))
    assert [gpu.index for gpu in read.gpus] == [0]
    assert [finding.check for finding in read.findings] == ["gpu-lost"]


def test_a_uuid_listed_twice_counts_once() -> None:
    read = parse_gpus(table(row(0), row(1, uuid=uuid(0)), row(2)))
    assert [gpu.index for gpu in read.gpus] == [0, 2]
    assert [finding.check for finding in read.findings] == ["gpu-duplicate"]


def test_a_cut_row_is_shown_but_not_used() -> None:
    cut, whole = parse_gpus(table(row(0)[:90], row(1))).gpus
    assert not cut.usable
    assert "of its 13 values" in (cut.reason or "")
    assert whole.usable


def test_a_repeated_heading_and_blank_lines_are_no_rows() -> None:
    read = parse_gpus(f"\ufeff{HEADING}\r\n\r\n{row(0)}\r\n\r\n{HEADING}\r\n{row(1)}\r\n")
    assert [gpu.index for gpu in read.gpus] == [0, 1]
    assert read.findings == []


def test_more_gpus_than_a_message_carries_are_left_out_with_a_finding() -> None:
    read = parse_gpus(table(*(row(index) for index in range(GPUS_PER_NODE_MAX + 3))))
    assert len(read.gpus) == GPUS_PER_NODE_MAX
    assert read.findings[0].what.startswith("3 GPUs beyond the first 64")


def test_thousands_of_unreadable_lines_make_few_findings() -> None:
    read = parse_gpus(table(row(0), *(f"noise {number}" for number in range(20_000)), row(1)))
    assert len(read.gpus) == 1
    assert len(read.findings) <= 32
    assert "could not be read" in read.findings[-1].what


def test_foreign_text_in_findings_is_one_short_printable_line() -> None:
    read = parse_gpus(table("\x1b[31mevil\x07 " + "x" * 5000))
    (finding,) = read.findings
    assert finding.what.isprintable()
    assert len(finding.what) < 300


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("No devices were found\n", "gpu-none"),
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.1\n",
            "gpu-driver",
        ),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "gpu-driver"),
        ("WARNING: infoROM is corrupted at gpu 0000:00:05.0\n", "gpu-inforom"),
    ],
)
def test_a_message_of_the_driver_is_one_finding(text: str, check: str) -> None:
    read = parse_gpus(text)
    assert read.gpus == []
    assert [finding.check for finding in read.findings] == [check]


def test_the_field_that_an_older_driver_refuses_is_named() -> None:
    assert invalid_field('Field "gpu_recovery_action" is not a valid field to query.\n') == "gpu_recovery_action"
    assert invalid_field(table(row(0))) is None


@pytest.mark.parametrize(("code", "words"), [(9, "not loaded"), (18, "different versions"), (-9, "signal 9")])
def test_exit_codes_are_explained(code: int, words: str) -> None:
    what, remedy = explain_exit(code)
    assert words in what
    assert remedy


def test_the_query_asks_for_csv_with_a_heading() -> None:
    assert query_args(["index", "uuid"]) == ["--query-gpu=index,uuid", "--format=csv"]


LINES = [
    *table(*(row(index) for index in range(4))).splitlines(),
    "Unable to determine the device handle for GPU0000:02:00.0: Unknown Error",
    "[Unknown Error], [Unknown Error]",
]


@settings(deadline=None, max_examples=300)
@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_lines_deleted_repeated_cut_or_swapped_never_raise_and_never_share_a_gpu(
    rng: random.Random, changes: int
) -> None:
    lines = list(LINES)
    for _ in range(changes):
        at = rng.randrange(len(lines)) if lines else 0
        match rng.choice(["delete", "repeat", "cut", "swap"]) if lines else "none":
            case "delete":
                del lines[at]
            case "repeat":
                lines.insert(rng.randrange(len(lines)), lines[at])
            case "cut":
                lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
            case "swap":
                lines[at], lines[0] = lines[0], lines[at]
    read = parse_gpus("\n".join(lines))
    uuids = [gpu.uuid for gpu in read.gpus if gpu.uuid]
    assert len(set(uuids)) == len(uuids)
    for gpu in read.gpus:
        assert gpu.usable == (gpu.reason is None)
        assert gpu.memory_total_mib in (None, 81559)


@settings(deadline=None)
@given(st.text(max_size=2000))
def test_any_text_at_all_is_read_without_raising(text: str) -> None:
    parse_gpus(text)
    parse_gpus(HEADING + "\n" + text)


@settings(deadline=None)
@example("1", 0)
@example("| 1 MiB", 0)
@example("GPU 0: H100 (UUID: GPU-00000000-1111-2222-3333-444455556666)", 0)
@given(st.text(alphabet=st.characters(exclude_characters="\n\r,"), max_size=40), st.integers(0, 12))
def test_any_cell_at_all_costs_no_other_gpu(cell: str, column: int) -> None:
    cells = row(0).split(", ")
    cells[column] = cell
    read = parse_gpus("\n".join([HEADING, ", ".join(cells).replace("\x0b", " "), row(1)]))
    assert [gpu.uuid for gpu in read.gpus if gpu.index == 1 and gpu.usable][-1:] == [uuid(1)]


def test_power_memory_errors_and_throttling_are_read_and_words_for_unknown_are_none() -> None:
    heading = (
        "index, uuid, name, power.draw [W], power.limit [W], ecc.errors.corrected.volatile.total, "
        "clocks_event_reasons.active"
    )
    rows = (
        "0, GPU-00000000, NVIDIA H200, 612.34 W, 700.00 W, 12, 0x0000000000000024",
        "1, GPU-00000001, NVIDIA H200, 66.00, [N/A], [N/A], Not Active",
        "2, GPU-00000002, NVIDIA H200, [Unknown Error], ERR!, -1, 0xzz",
    )
    gpus = parse_gpus("\n".join([heading, *rows])).gpus
    told = [(gpu.power_w, gpu.power_limit_w, gpu.corrected_ecc, gpu.throttled) for gpu in gpus]
    assert told == [(612.34, 700.0, 12, ["power", "thermal"]), (66.0, None, None, None), (None, None, None, None)]
