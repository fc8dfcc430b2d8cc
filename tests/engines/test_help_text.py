"""Reading help texts: which options they list, and whether they are whole."""

from __future__ import annotations

import pytest

from llmgw.engines.help_rules import help_rules, version_in
from llmgw.engines.help_text import HelpText, NotHelpError, read_help
from tests.engines.help_texts import whole_help

ENGINES = ["vllm", "sglang", "llamacpp", "sim", "ray"]
OPTIONS = [
    ["--model", "-m", "MODEL"],
    ["--port", "PORT"],
    ["--metrics"],
    ["--very-long-name-of-a-flag", "-vln", "N"],
]


def read(engine: str, text: str) -> HelpText:
    return read_help(text, help_rules(engine))


@pytest.mark.parametrize("width", [80, 300])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_spelling_of_every_option_is_found_and_none_of_the_prose(engine: str, width: int) -> None:
    text = read(engine, whole_help(engine, OPTIONS, width))
    assert {one for option in OPTIONS for one in option if one.startswith("-")} <= set(text.lines)
    assert not {"--no-such-flag", "--neither-this"} & set(text.lines)
    assert text.truncated is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_line_that_proves_an_option_is_a_line_of_the_text(engine: str) -> None:
    whole = whole_help(engine, OPTIONS)
    line = read(engine, whole).lines["--port"]
    assert line in [one.strip() for one in whole.splitlines()]
    assert "--port" in line


@pytest.mark.parametrize("engine", ENGINES)
def test_colours_and_carriage_returns_change_nothing(engine: str) -> None:
    whole = whole_help(engine, OPTIONS)
    coloured = whole.replace("--port", "\x1b[1;36m--port\x1b[0m").replace("\n", "\r\n")
    assert set(read(engine, coloured).lines) == set(read(engine, whole).lines)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.8, 0.95])
def test_a_text_that_was_cut_off_looks_truncated(engine: str, share: float) -> None:
    lines = whole_help(engine, OPTIONS).splitlines(keepends=True)
    assert read(engine, "".join(lines[: int(len(lines) * share)])).truncated is not None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_text_whose_beginning_is_missing_looks_truncated(engine: str) -> None:
    lines = whole_help(engine, OPTIONS).splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if "--unused-" in line and line.lstrip().startswith("--"))
    assert read(engine, "".join(lines[first + len(lines) // 8 :])).truncated is not None


@pytest.mark.parametrize("engine", ["vllm", "sglang", "ray"])
def test_a_text_that_ends_in_mid_sentence_looks_truncated(engine: str) -> None:
    whole = whole_help(engine, OPTIONS)
    at = whole.rindex("does not")
    cut = read(engine, whole[: at + 4]).truncated
    assert cut is not None
    assert "mid-sentence" in cut


def test_far_fewer_options_than_an_engine_has_look_truncated() -> None:
    few = whole_help("vllm", OPTIONS).splitlines(keepends=True)
    kept = [line for line in few if "--unused-" not in line]
    assert "lists" in (read("vllm", "".join(kept)).truncated or "")


def test_the_list_of_groups_that_vllm_prints_for_help_alone_is_not_its_whole_help() -> None:
    groups = "usage: vllm serve [options]\n\n  Use `--help=all` to show all.\n\nConfig Groups:\n  Frontend\n"
    cut = read("vllm", groups).truncated
    assert cut is not None
    assert "--help=all" in cut


@pytest.mark.parametrize(
    "text", ["", "\n \n", "No group or arguments matching 'listgroup'.\n", "\x7fELF\x02\x01\0"]
)
def test_a_text_that_is_no_help_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(NotHelpError) as refused:
        read("vllm", text)
    assert "save what `vllm serve --help=all` prints" in str(refused.value)
    assert str(refused.value).isprintable()


def test_choices_and_what_stands_in_metavars_are_no_options() -> None:
    text = whole_help("vllm", OPTIONS) + (
        "  --parser {a,-b,--c} or name registered in --plugin\n  --backend ['-x', 'mp'], -be ['-x', 'mp']\n"
    )
    found = read("vllm", text).lines
    assert {"--parser", "--backend", "-be"} <= set(found)
    assert not {"--c", "-b", "--plugin", "-x"} & set(found)


def test_a_pair_that_033_lists_as_enable_and_disable_takes_the_old_negation_too() -> None:
    text = whole_help("vllm", [*OPTIONS, ["--enable-x", "--disable-x"], ["--disable-y", "--enable-y"]])
    found = read("vllm", text).lines
    assert found["--no-enable-x"] == found["--disable-x"]
    assert "--no-disable-y" not in found
    assert "--no-enable-y" not in found


def test_what_llama_cpp_lists_as_removed_does_not_count() -> None:
    gone = (
        "--draft, --draft-max N                  the argument has been\n"
        "                                        removed. use --spec-n-max\n"
    )
    whole = whole_help("llamacpp", OPTIONS)
    at = whole.index("\n--port") + 1
    text = read("llamacpp", whole[:at] + gone + whole[at:])
    assert {"--draft", "--draft-max"} == set(text.removed)
    assert "--draft-max" not in text.lines
    assert "--port" in text.lines


def test_the_version_is_read_from_what_programs_say() -> None:
    assert version_in("version: 11434 (4d5e6f7)\nbuilt with cc") == "11434"
    assert version_in("ray, version 2.60.0") == "2.60.0"
    assert version_in("llmgw 0.1.0") == "0.1.0"
    assert version_in("0.5.23") == "0.5.23"
    assert version_in("unknown") is None


def test_vllm_says_its_version_in_its_help() -> None:
    text = whole_help("vllm", OPTIONS) + "   see https://docs.vllm.ai/en/v0.33.0/api/vllm/con\n   fig\n"
    assert read("vllm", text).version == "0.33.0"
