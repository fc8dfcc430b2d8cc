"""An answer about a fabric is its text, or a sentence about why there is none; and a cut map loses nothing."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from llmgw.fabric.changes import cabling_of
from llmgw.fabric.report import analyse, what_lacks
from llmgw.messages.fabric import FabricText
from llmgw.server.fabrics.comparing import compare_map
from llmgw.server.fabrics.reading import UnreadableError, managers_of, map_of, text_of
from tests.fabric.generate import fat_tree
from tests.server.fabric_world import M1, NO_MANAGER, SILENT, managers, packed


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (FabricText(request_id="r", error="no such port"), "no such port"),
        (FabricText(request_id="r", output=b"plain"), "cannot be unpacked"),
        (FabricText(request_id="r", output=zlib.compress(b"x" * 5000)[:-9]), "cut on its way"),
        (FabricText(request_id="r", output=zlib.compress(b"x" * 2**21)), "more than 1 MiB"),
        (packed("x", cut=True), "more than 1 MiB"),
    ],
)
def test_what_cannot_be_unpacked_is_a_sentence(answer: FabricText, words: str) -> None:
    with pytest.raises(UnreadableError, match=words):
        text_of(answer, 2**20)


def test_managers_that_do_not_answer_are_an_answer_and_a_tool_that_cannot_ask_is_none() -> None:
    assert managers_of(packed(managers(M1))).answer == "ok"
    assert managers_of(packed("", complaints=SILENT)).answer == "unknown"
    assert managers_of(packed("", complaints=NO_MANAGER)).answer == "none"
    for complaints, words in (
        ("ibwarn: [1] mad_rpc_open_port: can't open UMAD port ((null):0)", "may not use /dev/infiniband"),
        ("bash: saquery: command not found", "install infiniband-diags"),
        ("a poem", "no output of saquery"),
        ("", "printed nothing"),
    ):
        with pytest.raises(UnreadableError, match=words):
            managers_of(packed("", complaints=complaints))


def test_complaints_make_a_map_less_than_whole_and_nothing_is_gone_by_it() -> None:
    made = fat_tree(nodes=2, rails=2, leaves=2, spines=2)
    whole = cabling_of(analyse(made.text()).topology)
    made.switches[0].cables.clear()
    short = map_of(packed(made.text(), complaints="ibwarn: [7] timed out"), (), {}, {}).cabling
    assert not short.whole
    compared = compare_map(short, whole, whole)
    assert not any(change.kind.endswith("gone") for change in (*compared.changes, *compared.differences))
    after = compare_map(whole, compared.kept, whole)
    assert after.changes == ()
    assert after.differences == ()


@pytest.mark.parametrize("records", [2, 3, 4, 6])
def test_a_map_that_ends_between_two_records_is_not_whole_and_nothing_is_gone_by_it(records: int) -> None:
    text = fat_tree(nodes=4, rails=2, leaves=4, spines=2).text()
    whole = cabling_of(analyse(text).topology)
    short = map_of(packed("\n\n".join(text.split("\n\n")[:records]) + "\n"), (), {}, {})
    assert (short.analysis.topology.unread, short.cabling.whole) == (0, False)
    compared = compare_map(short.cabling, whole, whole)
    assert not any(change.kind.endswith("gone") for change in (*compared.changes, *compared.differences))


def test_a_map_of_a_tool_that_failed_is_not_whole_however_clean_it_looks() -> None:
    answer = msgspec.structs.replace(packed(fat_tree(nodes=4).text()), exit_code=-9)
    read = map_of(answer, (), {}, {})
    assert not read.cabling.whole
    assert "it ended with -9" in " ".join(what_lacks(read.analysis.topology))
