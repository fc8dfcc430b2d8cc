"""What a profile may not set, and what is said of what it sets against us."""

from __future__ import annotations

import pytest

from llmgw.engines.command_line import Reading
from llmgw.engines.overrides import (
    merge_env,
    refused_args,
    refused_env,
    secret_warnings,
    size_problems,
    spelling_problems,
)

READING = Reading(underscores=True, abbreviations=True, equals=True)


def test_a_refused_flag_is_named_with_its_reason_and_the_remedy() -> None:
    refused = {"--host": "the agent chooses it"}
    assert refused_args(["--threads", "2", "--HOST", "--host=::"], refused, READING) == [
        "args has --host, which a profile may not set: the agent chooses it; remove it"
    ]
    assert refused_args(["--ho", "::"], refused, READING) == [
        "args has --ho, which the engine takes for --host, which a profile may not set: the agent chooses it; "
        "remove it"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "LLMGW_SHARD",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "spt_noenv",
        "ld_preload",
    ],
)
def test_variables_that_hold_the_invariants_are_refused(name: str) -> None:
    (sentence,) = refused_env({name: "x", "NCCL_DEBUG": "INFO"})
    assert name in sentence
    assert "remove it" in sentence


def test_nul_bytes_are_refused_since_no_process_can_be_given_them() -> None:
    assert refused_env({"A": "x\0y"})
    assert refused_args(["x\0y"], {}, READING)


@pytest.mark.parametrize(
    "args",
    [
        ["--hf-token", "hf_abcdefghijklmnopqrstuv"],
        ["--some-api-key=s3cr3t-hf_abcdefghijklmnopqrstuv"],
        ["--header", "Authorization: Bearer hf_abcdefghijklmnopqrstuv"],
        ["--api-key", "hf_abcdefghijklmnopqrstuv"],
    ],
)
def test_secrets_in_arguments_are_refused_and_never_repeated(args: list[str]) -> None:
    (sentence,) = refused_args(args, {"--api-key": "the agent gives it a key of its own"}, READING)
    assert "hf_abc" not in sentence
    assert "s3cr3t" not in sentence


def test_numbers_after_flags_that_are_called_token_are_no_secrets() -> None:
    args = ["--bucket-time-to-first-token", "0.1", "0.5", "--max-num-batched-tokens", "2048"]
    assert refused_args(args, {}, READING) == []


def test_a_secret_in_the_environment_is_told_by_its_name_only() -> None:
    (warning,) = secret_warnings({"HF_TOKEN": "hf_abc", "NCCL_DEBUG": "INFO", "EMPTY_TOKEN": ""})
    assert "HF_TOKEN" in warning
    assert "hf_abc" not in warning


def test_a_size_with_a_unit_is_refused_in_any_spelling_of_its_flag() -> None:
    for args in (["--max-len", "4k"], ["--max-l=4K"], ["--max_len", "4.5Ki"]):
        (sentence,) = size_problems(args, {"--max-len"}, READING, "it reads 4k as 4000")
        assert "it reads 4k as 4000" in sentence
    assert size_problems(["--max-len", "4096", "--other", "4k"], {"--max-len"}, READING, "") == []
    assert size_problems(["--max-len", "-1", "--max-len", "auto"], {"--max-len"}, READING, "") == []


def test_spellings_that_an_engine_does_not_take_are_told_with_the_right_ones() -> None:
    plain = Reading()
    equals, underscores = spelling_problems(["--size=4", "--a_b", "4", "a_b=c"], plain, "It")
    assert "--size and its value as two" in equals
    assert "write --a-b" in underscores
    assert spelling_problems(["--size=4", "--a_b"], READING, "It") == []


def test_a_flag_and_its_value_in_one_argument_are_told_apart() -> None:
    (sentence,) = spelling_problems(["--max-model-len 4096", '--x={"a b": 1}', "a -b"], READING, "It")
    assert "args has --max-model-len and what follows it as one argument" in sentence


def test_no_sentence_about_a_spelling_repeats_a_value() -> None:
    sentences = spelling_problems(
        ["--api-key=s3cr3t", "--api-key s3cr3t", "--api_key", "s3cr3t"], Reading(), "It"
    )
    assert len(sentences) == 3
    assert not any("s3cr3t" in sentence for sentence in sentences)


def test_a_profiles_variable_wins_and_the_contradiction_is_told() -> None:
    merged, (warning,) = merge_env({"NCCL_DEBUG": "INFO", "A": "1"}, {"NCCL_DEBUG": "WARN", "A": "1", "B": "2"})
    assert merged == {"NCCL_DEBUG": "WARN", "A": "1", "B": "2"}
    assert "NCCL_DEBUG" in warning
    assert "'INFO'" in warning
