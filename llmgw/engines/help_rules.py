"""How each engine is asked for its whole help, how that text looks, and what its parser takes beyond it.

Facts of vLLM 0.32 and 0.33, SGLang 0.5.23, llama.cpp b11434 and Ray 2.60, from their texts and their parsers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llmgw.engines import llamacpp, sglang, vllm_flags
from llmgw.engines.command_line import Reading

HELP_COLUMNS = 300
"""argparse and Click wrap at $COLUMNS; at 80 they also break names in prose at their hyphens."""


@dataclass(frozen=True, kw_only=True)
class HelpRules:
    """One program's help. `called` is what people call the program.

    `ask` follows the program (or interpreter) and prints everything; all of it but its last word begins the
    command lines of shards, too. `ask_version` prints the version. `ask_program` and `ask_program_version` are
    the same for the engine's own program, where shards run by the interpreter.

    `column` is where option lines begin; deeper ones are prose. A whole text holds `opening`, with which its
    options begin, ends with `closing` and lists about `options_known` options. `sentences`: its descriptions end
    as sentences do.

    `reading` is how the parser reads what is listed. `unlisted` are short options that it takes although no line
    lists them, and the long one that they stand for. `unlisted_off`: a listed pair `--enable-x, --disable-x`
    takes `--no-enable-x` too.
    """

    called: str
    ask: tuple[str, ...]
    ask_version: tuple[str, ...] | None = None
    ask_program: tuple[str, ...] | None = None
    ask_program_version: tuple[str, ...] | None = None
    version_in_text: str | None = None
    column: int
    opening: str
    closing: str | None = None
    options_known: int
    sentences: bool = True
    reading: Reading
    unlisted: Mapping[str, str] = field(default_factory=dict)
    unlisted_off: bool = False


_CLICK = Reading(equals=True)

_RULES: dict[str, HelpRules] = {
    "vllm": HelpRules(
        called="vllm serve",
        # `--help` alone lists groups of options and no option.
        ask=("serve", "--help=all"),
        ask_version=("--version",),
        version_in_text=r"docs\.vllm\.ai/en/v(\d{1,6}\.\d{1,6}[\w.]{0,60})/",
        column=2,
        # Without its usage alone a text still lists every option.
        opening=r"^(?:usage: |options:$)",
        closing=r"^When passing JSON CLI arguments",
        options_known=317,
        reading=vllm_flags.READING,
        unlisted={"-O": "--optimization-level"},
        unlisted_off=True,
    ),
    "sglang": HelpRules(
        called="python -m sglang.launch_server",
        ask=("-m", "sglang.launch_server", "--help"),
        # Not asked of SGLang itself, which imports torch to say it.
        ask_version=("-c", "import importlib.metadata as m; print(m.version('sglang'))"),
        ask_program=("serve", "--help"),
        ask_program_version=("version",),
        column=2,
        opening=r"^(?:usage: |options:$)",
        options_known=530,
        reading=sglang.READING,
    ),
    "llamacpp": HelpRules(
        called="llama-server",
        ask=("--help",),
        ask_version=("--version",),
        column=0,
        opening=r"^----- common params -----$",
        # The presets stand last.
        closing=r"^--[a-z0-9-]+-default .*\n(?: .*\n)*\Z",
        options_known=256,
        sentences=False,
        reading=llamacpp.READING,
    ),
    "sim": HelpRules(
        called="llmgw sim engine",
        ask=("-m", "llmgw", "sim", "engine", "--help"),
        ask_version=("-m", "llmgw", "version"),
        ask_program=("sim", "engine", "--help"),
        ask_program_version=("version",),
        column=2,
        opening=r"^Usage: ",
        closing=r"^  .*--help .*\n\Z",
        options_known=33,
        reading=_CLICK,
    ),
    "ray": HelpRules(
        called="ray start",
        ask=("start", "--help"),
        ask_version=("--version",),
        column=2,
        opening=r"^Usage: ",
        closing=r"^  --help .*\n\Z",
        options_known=39,
        reading=_CLICK,
    ),
}


def help_rules(program: str) -> HelpRules:
    """The rules for an engine by the catalog's word for it, or for `ray`, which vLLM's replicas may start.

    Raises KeyError for a program that nothing is known of.
    """
    return _RULES[program]


def program_rules(rules: HelpRules) -> HelpRules:
    """The same, asked of the engine's own program instead of the interpreter that has it."""
    if rules.ask_program is None:
        return rules
    return replace(rules, ask=rules.ask_program, ask_version=rules.ask_program_version)


def version_in(output: str) -> str | None:
    """The version in what a program said when it was asked for it: `vllm 0.32.0`, `version: 11434 (1a2b3c)`."""
    found = re.search(r"\bversion:? +v?(\d[\w.+-]*)", output) or re.search(r"\bv?(\d+\.\d+[\w.+-]*)", output)
    return found[1] if found else None
