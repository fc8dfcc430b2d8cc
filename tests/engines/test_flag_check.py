"""Holding command lines against help texts."""

from __future__ import annotations

import time

import pytest

from llmgw.engines import registry
from llmgw.engines.engine_check import check_engine
from llmgw.engines.flag_check import check_flags, flags_in
from llmgw.engines.help_rules import help_rules
from llmgw.engines.help_text import read_help
from llmgw.messages.admin import FlagCheck
from tests.engines.help_texts import whole_help

OPTIONS = [
    ["--tensor-parallel-size", "-tp", "N"],
    ["--port-range", "RANGE"],
    ["--gpu-memory-utilization", "FRACTION"],
    ["--limit-mm-per-prompt", "JSON"],
    ["--optimization-level", "LEVEL"],
    ["--enable-x", "--no-enable-x"],
]


def check(engine: str, *argv: str, options: list[list[str]] = OPTIONS) -> list[FlagCheck]:
    rules = help_rules(engine)
    return check_flags(flags_in(argv, rules), read_help(whole_help(engine, options), rules), rules)


def one(engine: str, *argv: str) -> FlagCheck:
    (verdict,) = check(engine, *argv)
    return verdict


def test_flags_are_taken_from_a_command_line_each_once_and_without_their_values() -> None:
    argv = ["/model", "--port", "-1", "-tp=2", "--x", "-.5", "--port", "{}", "-", "--", "--not-a-flag"]
    assert flags_in(argv, help_rules("vllm")) == ["--port", "-tp", "--x"]


def test_a_flag_is_not_taken_because_a_longer_one_begins_with_it() -> None:
    verdict = one("vllm", "--port", "80")
    assert verdict.ok is False
    assert verdict.line is None
    assert verdict.nearest == "--port-range"


def test_the_beginnings_that_argparse_completes_do_not_count() -> None:
    assert one("vllm", "--gpu-mem", "0.5") == FlagCheck(
        flag="--gpu-mem", ok=False, nearest="--gpu-memory-utilization"
    )


def test_aliases_and_negations_count_where_they_are_listed() -> None:
    assert [each.ok for each in check("vllm", "-tp", "2", "--no-enable-x", "--no-port-range")] == [
        True,
        True,
        False,
    ]


def test_underscores_count_where_the_parser_takes_them() -> None:
    assert one("vllm", "--tensor_parallel_size", "2").ok is True
    assert one("llamacpp", "--tensor_parallel_size", "2").ok is True
    assert one("sglang", "--tensor_parallel_size", "2") == FlagCheck(
        flag="--tensor_parallel_size", ok=False, nearest="--tensor-parallel-size"
    )


def test_llama_cpp_takes_no_flag_and_value_in_one() -> None:
    assert one("llamacpp", "--tensor-parallel-size=2") == FlagCheck(
        flag="--tensor-parallel-size=2", ok=False, nearest="--tensor-parallel-size"
    )
    assert one("vllm", "--tensor-parallel-size=2").ok is True


def test_keys_below_a_json_flag_and_glued_values_count_for_vllm() -> None:
    assert one("vllm", "--limit-mm-per-prompt.image", "2").ok is True
    assert one("vllm", "--limit_mm_per_prompt.some_list+", "2").ok is True
    assert one("vllm", "-O3").ok is True
    assert one("vllm", "-tp2").ok is False
    assert check("vllm", "-n2", options=[["--nnodes", "-n", "N"]])[0].ok is True
    assert one("sglang", "--limit-mm-per-prompt.image", "2").ok is False


def test_a_misspelt_flag_gets_the_one_with_the_fewest_edits() -> None:
    assert one("vllm", "--gpu-memory-utilisation", "1").nearest == "--gpu-memory-utilization"
    assert one("vllm", "--enable-z").nearest == "--enable-x"


def test_a_removed_flag_is_missing_and_what_replaces_it_is_named() -> None:
    text = "----- common params -----\n--draft-max N     the argument has been removed. use --spec-n-max or -x\n"
    text += whole_help("llamacpp", [["--spec-n-max", "N"]]).partition("\n")[2]
    rules = help_rules("llamacpp")
    (verdict,) = check_flags(["--draft-max"], read_help(text, rules), rules)
    assert verdict.ok is False
    assert verdict.nearest == "--spec-n-max"
    assert "has been removed" in (verdict.line or "")


def test_in_a_text_that_is_not_whole_a_flag_is_unknown_and_never_missing() -> None:
    rules = help_rules("vllm")
    whole = whole_help("vllm", OPTIONS)
    text = read_help(whole[: whole.index("When passing JSON")], rules)
    verdicts = check_flags(["--port-range", "--node-rank"], text, rules)
    assert verdicts[0].ok is True
    assert verdicts[1] == FlagCheck(flag="--node-rank", ok=None)


MANY = "options:\n" + "".join(f"  --opt-{at} X  Sets it.\n" for at in range(600))
BYTES = 2**20
HOSTILE = {
    "usages without an end": MANY + "usage: x\n" * (BYTES // 9),
    "a version without an end": MANY + "docs.vllm.ai/en/v1." + "1" * BYTES + "\n",
    "one line that closes again and again": MANY + "  " + "--help " * (BYTES // 7),
    "spellings without an end": MANY + "  " + "--a, " * (BYTES // 5),
    "options without an end": "options:\n" + "".join(f"  --opt-{at} X  Sets it.\n" for at in range(BYTES // 22)),
    "one long option": "options:\n  --" + "a" * BYTES + "\n" + MANY,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "sim"])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_text_made_to_take_for_ever_is_judged_in_seconds(engine: str, text: str) -> None:
    """The server judges what nodes send, and nothing else of it runs while an expression is matched."""
    began_s = time.process_time()
    check_engine(registry.adapter(engine), "usage: x\nUsage: x\n----- common params -----\n" + text)
    assert time.process_time() - began_s < 5
