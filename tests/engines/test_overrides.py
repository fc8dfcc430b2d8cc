"""What a profile may not set, in every spelling that an engine would understand."""

from __future__ import annotations

import pytest

from llmgw.engines.overrides import flag_of, has_flag, refused_args, refused_env


@pytest.mark.parametrize(
    ("arg", "flag"),
    [
        ("--host", "--host"),
        ("--host=0.0.0.0", "--host"),
        ("--api_key=x", "--api-key"),
        ("-a", "-a"),
        ("-1", None),
        ("-", None),
        ("fast", None),
        ("", None),
    ],
)
def test_a_flag_is_recognised_in_one_argument(arg: str, flag: str | None) -> None:
    assert flag_of(arg) == flag


def test_a_refused_flag_is_named_with_its_reason_and_the_remedy() -> None:
    sentences = refused_args(["--threads", "2", "--HOST", "--host=::"], {"--host": "the agent chooses it"})
    assert sentences == ["args has --host=::, which a profile may not set: the agent chooses it; remove it"]


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "LLMGW_SHARD",
        "CUDA_VISIBLE_DEVICES",
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
    assert refused_args(["x\0y"], {})


def test_a_flag_is_seen_in_any_of_its_spellings() -> None:
    assert has_flag(["-np", "2"], "-np", "--parallel")
    assert not has_flag(["--parallelism", "2"], "-np", "--parallel")
