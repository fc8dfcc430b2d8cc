"""Holds command lines against a help text: which flags the program takes, and what was meant by the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

from llmgw.engines.help_rules import HelpRules
from llmgw.engines.help_text import HelpText
from llmgw.messages.admin import FlagCheck

# A help text may come from a node that is not what it was: what is compared is bounded, well above the real ones'
# some hundred options.
_COMPARED_CHARS_MAX = 100
_COMPARED_MAX = 2000
_NUMBER = re.compile(r"-\.?\d")


def flags_in(argv: Sequence[str], rules: HelpRules) -> list[str]:
    """The flags of arguments (without the program itself), each once, without values: `-tp=2` is `-tp`.

    Where the program takes no `--flag=value`, that stays whole, since it is not a flag there.
    """
    flags: dict[str, None] = {}
    for arg in argv:
        if arg == "--":
            break
        if len(arg) > 1 and arg.startswith("-") and not _NUMBER.match(arg):
            flags.setdefault(arg.partition("=")[0] if rules.reading.equals else arg)
    return list(flags)


def check_flags(flags: Iterable[str], text: HelpText, rules: HelpRules) -> list[FlagCheck]:
    """One verdict a flag, in their order.

    A flag counts in exactly the spelling that the program's parser takes: negated forms and aliases do where the
    help lists them, and the unique beginnings that argparse completes do not, since the next version may add
    another flag that begins so.
    """
    return [_check(flag, text, rules) for flag in flags]


def _check(flag: str, text: HelpText, rules: HelpRules) -> FlagCheck:
    for spelling in _listed_as(flag, rules):
        if spelling in text.lines:
            return FlagCheck(flag=flag, ok=True, line=text.lines[spelling])
    removed = next((text.removed[one] for one in _listed_as(flag, rules) if one in text.removed), None)
    if removed is None and text.truncated is not None:
        return FlagCheck(flag=flag, ok=None)
    named = re.findall(r"--[a-z][\w-]*", removed or "")
    meant = next((one for one in named if one in text.lines), None) or nearest(flag, text.lines, rules)
    return FlagCheck(flag=flag, ok=False, line=removed, nearest=meant)


def _listed_as(flag: str, rules: HelpRules) -> list[str]:
    """The spellings that the help would show for a flag that the parser takes."""
    name, dot, rest = flag.partition(".") if rules.reading.dotted else (flag, "", "")
    if rules.reading.underscores and name.startswith("--"):
        name = name.replace("_", "-")
    spellings = [name + dot + rest]
    if dot:
        spellings.append(name)
    letter = name[:2]
    if rules.reading.abbreviations and not name.startswith("--"):
        # A value may be joined to an option of one letter: `-n2`.
        spellings.append(letter)
    return [*spellings, *(long for short, long in rules.unlisted.items() if letter == short)]


def nearest(flag: str, spellings: Iterable[str], rules: HelpRules) -> str | None:
    """The spelling that was most likely meant: one that the flag begins, else the one with the fewest edits."""
    name = flag.partition("=")[0][:_COMPARED_CHARS_MAX]
    if rules.reading.underscores:
        name = name.replace("_", "-")
    best: tuple[bool, int, str] | None = None
    for spelling in islice((each for each in spellings if len(each) <= _COMPARED_CHARS_MAX), _COMPARED_MAX):
        begins = len(name) > 3 and spelling.startswith(name)
        if best is not None and not begins and (not best[0] or abs(len(name) - len(spelling)) > best[1]):
            continue
        candidate = (not begins, _edits(name, spelling), spelling)
        best = candidate if best is None else min(best, candidate)
    return best[2] if best else None


def _edits(one: str, other: str) -> int:
    """Levenshtein's distance: insertions, deletions and substitutions that turn one into the other."""
    row = list(range(len(other) + 1))
    for at, char in enumerate(one, 1):
        diagonal, row[0] = row[0], at
        for to, wanted in enumerate(other, 1):
            diagonal, row[to] = row[to], min(row[to] + 1, row[to - 1] + 1, diagonal + (char != wanted))
    return row[-1]
