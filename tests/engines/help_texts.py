"""Makes help texts in each engine's form, as small or as whole as a test wants them, and finds the real ones."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from llmgw.engines.help_rules import help_rules

ROOT = Path(__file__).parents[2]
REAL = Path(os.environ.get("LLMGW_SHARED", ROOT.parent / "shared")) / "engines" / "help"
WITHOUT_REAL = "no ../shared/engines/help beside the repository: no real help text to read"

Option = Sequence[str]
"""The spellings of one option, and after them its value's name in capitals, if it takes one."""


def whole_help(engine: str, options: Sequence[Option], width: int = 80) -> str:
    """A help text that looks whole: `options`, and as many others as the engine has had."""
    return {
        "vllm": vllm_help,
        "sglang": sglang_help,
        "llamacpp": llama_help,
        "sim": click_help,
        "ray": click_help,
    }[engine](_padded(engine, options), width)


def options_of(flags: Sequence[str]) -> list[Option]:
    """Options that a command line's flags would be, each with a value."""
    return [[flag, "VALUE"] for flag in flags if flag not in ("-h", "--help")]


def vllm_help(options: Sequence[Option], width: int = 80) -> str:
    """argparse's text in groups, with vLLM's closing section."""
    parser = _parser("vllm serve", "vllm serve [model_tag] [options]", width)
    groups = [parser, parser.add_argument_group("Frontend"), parser.add_argument_group("VllmConfig")]
    for at, option in enumerate(options):
        _add(groups[at * len(groups) // len(options)], option)
    return parser.format_help() + (
        "\nWhen passing JSON CLI arguments, the following sets of arguments are equivalent:\n"
        '   --json-arg \'{"key1": "value1"}\'\n   --json-arg.key1 value1\n'
    )


def sglang_help(options: Sequence[Option], width: int = 80) -> str:
    """argparse's flat text; its usage names every option and nothing closes it."""
    parser = _parser("sglang serve", None, width)
    for option in options:
        _add(parser, option)
    return parser.format_help()


def llama_help(options: Sequence[Option], width: int = 80) -> str:
    """llama.cpp's text: options at column 0, descriptions at column 40, the presets last."""
    lines = []
    for at, option in enumerate([*options, ["--tiny-default"]]):
        if at in (0, len(options) // 2):
            lines += ["----- common params -----" if at == 0 else "\n----- example-specific params -----", ""]
        spellings = [one for one in option if one.startswith("-")]
        # Short ones are padded, so that the long ones stand below each other.
        header = " ".join([*(f"{one + ',':<6}" for one in spellings[:-1]), spellings[-1]])
        header = " ".join([header, *(one for one in option if not one.startswith("-"))])
        text = ["sets what --no-such-flag does not set (see", "--neither-this)"]
        lines += [f"{header:<39} {text.pop(0)}"] if len(header) < 40 else [header]
        lines += [" " * 40 + line for line in text]
    return "\n".join(lines) + "\n"


def click_help(options: Sequence[Option], width: int = 80) -> str:
    """Click's text, as Ray's and our own."""
    lines = ["Usage: ray start [OPTIONS]", "", "  Starts something.", "", "Options:"]
    for option in options:
        header = ", ".join(one for one in option if one.startswith("-"))
        lines += [f"  {header} TEXT", " " * 34 + "Says what --no-such-flag does not say."]
    return "\n".join([*lines, "  --help                          Show this message and exit."]) + "\n"


def without(text: str, flag: str) -> str:
    """The text without the option lines that list `flag`, and nothing else changed."""
    name = re.compile(rf"(?<![\w-]){re.escape(flag)}(?![\w.-])")
    kept = [line for line in text.splitlines(keepends=True) if not name.search(_option_part(line))]
    assert len(kept) < len(text.splitlines()), f"{flag} stands in no option line"
    return "".join(kept)


def _option_part(line: str) -> str:
    """Where a line lists options, or nothing."""
    if line.startswith("-"):
        return line[:40] if line[39:40] == " " else line
    return re.split(r"\s{2,}", line[2:])[0] if line.startswith("  -") else ""


def _padded(engine: str, options: Sequence[Option]) -> list[Option]:
    missing = help_rules(engine).options_known - len(options)
    extra: list[Option] = [[f"--unused-{at}", f"-u{at}", "COUNT"] for at in range(max(0, missing))]
    return [*extra[::2], *options, *extra[1::2]]


def _parser(prog: str, usage: str | None, width: int) -> argparse.ArgumentParser:
    def formatter(prog: str) -> argparse.HelpFormatter:
        return argparse.HelpFormatter(prog, width=width - 2)

    return argparse.ArgumentParser(prog=prog, usage=usage, formatter_class=formatter)


def _add(parser: argparse._ActionsContainer, option: Option) -> None:
    spellings = [one for one in option if one.startswith("-")]
    words = [one for one in option if not one.startswith("-")]
    text = "What the flag --no-such-flag does not do, in words that are long enough to wrap. (default: None)"
    if words:
        parser.add_argument(*spellings, metavar=words[0], help=text)
    else:
        parser.add_argument(*spellings, action="store_true", help=text)
