"""How the engines' own parsers read arguments, and that no spelling of theirs gets past what is refused."""

from __future__ import annotations

import argparse
from collections.abc import Collection

import pytest

from llmgw.engines import llamacpp, sglang, vllm_flags
from llmgw.engines.command_line import Reading, compose, flag_of, has_flag, read_args, setting, value_of
from llmgw.engines.overrides import refused_args
from tests.engines.recorded import FLAG_LISTS, flags

ARGPARSE = Reading(underscores=True, abbreviations=True, equals=True, dotted=True)
PLAIN = Reading()


def meant(arg: str, vocabulary: Collection[str], reading: Reading = ARGPARSE) -> set[str]:
    return {flag for given in read_args([arg], vocabulary, reading) for flag in given.flags}


@pytest.mark.parametrize(
    ("arg", "flag"),
    [
        ("--host", "--host"),
        ("--host=0.0.0.0", "--host"),
        ("--api_key=x", "--api-key"),
        ("-a", "-a"),
        ("-1", None),
        ("-", None),
        ("--", None),
        ("fast", None),
        ("", None),
    ],
)
def test_a_flag_is_recognised_in_one_argument(arg: str, flag: str | None) -> None:
    assert flag_of(arg) == flag


def test_the_beginning_of_a_flag_is_that_flag_to_argparse_and_nothing_to_others() -> None:
    assert meant("--hos", {"--host", "--port"}) == {"--host"}
    assert meant("--ho=::", {"--host", "--port"}) == {"--host"}
    assert meant("--no", {"--nnodes", "--node-rank"}) == {"--node-rank"}
    assert meant("--n", {"--nnodes", "--node-rank"}) == {"--nnodes", "--node-rank"}
    assert meant("--hos", {"--host"}, PLAIN) == set()


def test_a_value_may_be_joined_to_a_flag_of_one_letter() -> None:
    (given,) = read_args(["-n2"], {"-n", "-np"}, ARGPARSE)
    assert (given.flags, given.values) == ({"-n"}, ("2",))
    assert meant("-t", {"-tp"}) == {"-tp"}
    assert meant("-n2", {"-n"}, PLAIN) == set()


def test_a_flag_that_exists_is_not_the_beginning_of_another() -> None:
    reading = Reading(abbreviations=True, whole=frozenset({"--data-parallel-size"}))
    assert meant("--data-parallel-size", {"--data-parallel-size-local"}, reading) == set()
    assert meant("--data-parallel-size-l", {"--data-parallel-size-local"}, reading) == {
        "--data-parallel-size-local"
    }


def test_a_part_of_a_json_flag_is_that_flag() -> None:
    assert meant("--hf-overrides.rope_theta=1", {"--hf-overrides"}) == {"--hf-overrides"}


def test_the_last_value_counts_and_a_number_is_no_flag() -> None:
    args = ["--size", "1", "--flag", "--si=-1"]
    assert value_of(args, ["--size"], ARGPARSE) == "-1"
    assert value_of(args, ["--other"], ARGPARSE) is None
    assert has_flag(args, ["--flag", "-f"], PLAIN)
    assert not has_flag(["--parallelism", "2"], ["-np", "--parallel"], ARGPARSE)


def test_what_a_profile_sets_itself_is_left_out_of_ours_and_told_when_it_differs() -> None:
    ours = [setting("--tensor-parallel-size -tp", 2), setting("--names", "a", "b"), setting("--metrics")]
    assert compose(ours, ["--x", "1"], ARGPARSE) == (
        ["--tensor-parallel-size", "2", "--names", "a", "b", "--metrics", "--x", "1"],
        [],
    )
    argv, warnings = compose(ours, ["-tp=4", "--metrics"], ARGPARSE)
    assert argv == ["--names", "a", "b", "-tp=4", "--metrics"]
    (warning,) = warnings
    assert "-tp 4" in warning
    assert "--tensor-parallel-size 2" in warning
    assert compose(ours, ["--tensor_par", "2"], ARGPARSE)[1] == []


@pytest.mark.parametrize(
    ("engine", "refused", "reading"),
    [
        ("vllm", vllm_flags.REFUSED_ARGS, vllm_flags.READING),
        ("sglang", sglang.REFUSED_ARGS, sglang.READING),
    ],
)
def test_no_abbreviation_that_argparse_resolves_gets_past_what_is_refused(
    engine: str, refused: dict[str, str], reading: Reading
) -> None:
    """The engine's options in a parser of Python's own, asked about every beginning of every refused flag."""
    for name in FLAG_LISTS[engine]:
        parser = argparse.ArgumentParser(add_help=False)
        for number, spellings in enumerate(flags(name)):
            parser.add_argument(*spellings, dest=f"o{number}", nargs="?", default=argparse.SUPPRESS)
        of_option = {spelling: action.dest for action in parser._actions for spelling in action.option_strings}
        forbidden = {of_option[flag] for flag in refused if flag in of_option}
        tried = 0
        for flag in refused:
            for end in range(2, len(flag) + 1):
                joined = [] if flag.startswith("--") else [flag[:end] + "1"]
                for written in [flag[:end], *joined]:
                    try:
                        found, rest = parser.parse_known_args([written])
                    except (argparse.ArgumentError, SystemExit):
                        continue  # ambiguous: the engine ends
                    taken = set(vars(found))
                    if rest or not taken & forbidden:
                        continue
                    tried += 1
                    assert refused_args([written], refused, reading), f"{engine} takes {written} for {taken}"
        assert tried > 20


@pytest.mark.parametrize(
    ("engine", "refused", "reading"),
    [
        ("vllm", vllm_flags.REFUSED_ARGS, vllm_flags.READING),
        ("sglang", sglang.REFUSED_ARGS, sglang.READING),
        ("llamacpp", llamacpp.REFUSED_ARGS, llamacpp.READING),
    ],
)
def test_every_other_flag_of_the_engine_passes(engine: str, refused: dict[str, str], reading: Reading) -> None:
    for name in FLAG_LISTS[engine]:
        spellings = {spelling for option in flags(name) for spelling in option}
        for spelling in spellings - set(refused):
            if any(set(option) & set(refused) for option in flags(name) if spelling in option):
                raise AssertionError(f"{spelling} means a flag that is refused, and is not refused itself")
            assert refused_args([spelling, "1"], refused, reading) == [], spelling
