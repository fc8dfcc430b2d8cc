"""Reads an engine's help text: which options it lists, each with its line, and whether the text is all of it.

Prose is full of flags, some broken at their hyphens, so only option lines count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llmgw.config.errors import SentenceError
from llmgw.engines.help_rules import HelpRules

_SPELLING = r"--?[A-Za-z][\w.-]*"
_FIRST = re.compile(_SPELLING)
_NEXT = re.compile(rf"(?:,\s+|\s*/\s*)(?={_SPELLING})")
# Colours and the like (ECMA-48), which Python 3.14's argparse adds where it is told that somebody looks.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_REMOVED = "the argument has been removed"
_USAGE = re.compile(r"^usage: ", re.MULTILINE)
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
# The closing sections of the real ones take less, and are looked for in no more: a text may come from a node that
# is not what it was, and nothing else runs while an expression is matched.
_CLOSING_CHARS_MAX = 8192
_PROMISED = re.compile(rf"(?<=\[){_SPELLING}")
_ENDS = (".", ")", "]", "}", "!", "?", ":", '"', "'")


class NotHelpError(SentenceError):
    """A text that is nobody's help."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class HelpText:
    """What a help text says.

    `lines` is spelling → its option line; `removed` is spelling → the words with which a listed option is said to
    be gone. `truncated` is a clause that says what is missing from the text, or None when it looks whole.
    """

    lines: Mapping[str, str]
    removed: Mapping[str, str]
    version: str | None
    truncated: str | None


def read_help(text: str, rules: HelpRules) -> HelpText:
    """Read a help text, saved at any width. Raises NotHelpError with a sentence when it is none."""
    text = without_colours(text).replace("\r\n", "\n").expandtabs()
    lines: dict[str, str] = {}
    removed: dict[str, str] = {}
    options = list(_options(text, rules))
    if not options and not re.search(rules.opening, text, re.MULTILINE):
        raise NotHelpError(_not_help(text, rules))
    for header, description in options:
        spellings = _spellings(header, rules)
        if _REMOVED in description:
            removed.update(dict.fromkeys(spellings, description))
            continue
        line = header.strip()
        for spelling in [*spellings, *_unlisted(spellings, rules)]:
            lines.setdefault(spelling, line)
    version = re.search(rules.version_in_text, text) if rules.version_in_text else None
    return HelpText(
        lines=lines,
        removed=removed,
        version=version[1] if version else None,
        truncated=_truncated(text, rules, options, {*lines, *removed}),
    )


def without_colours(text: str) -> str:
    """Text without escape sequences."""
    return _ESCAPES.sub("", text)


def _options(text: str, rules: HelpRules) -> Iterator[tuple[str, str]]:
    """Each option's line as it stands, and its description joined into one line."""
    begins = re.compile(" " * rules.column + _SPELLING)
    prose = " " * (rules.column + 4)
    header: str | None = None
    description: list[str] = []
    for line in text.splitlines():
        if header is not None and (line.startswith(prose) or not line.strip()):
            description.append(line.strip())
            continue
        if header is not None:
            yield header, " ".join(description).strip()
        # A heading, or a closing section, describes no option.
        header = line if begins.match(line) else None
        description = [part.strip() for part in re.split(r"\s{2,}", line.strip())[1:]]
    if header is not None:
        yield header, " ".join(description).strip()


def _spellings(header: str, rules: HelpRules) -> list[str]:
    """The spellings of an option line: `  --a-b N, -a N  text`, `-a,    --a-b N   text`, `  --a / --no-a`."""
    if rules.column == 0:
        # llama.cpp aligns the long spellings, so two spaces do not begin the description.
        found = re.match(rf"{_SPELLING}(?:,\s+{_SPELLING})*", header)
        return _FIRST.findall(found[0]) if found else []
    head = re.split(r"\s{2,}", header.strip())[0]
    # Choices hold commas too, and prose names other options, but neither has one behind a comma and a space.
    parts = _NEXT.split(head)
    return [found[0] for part in parts if (found := _FIRST.match(part))]


def _unlisted(spellings: list[str], rules: HelpRules) -> list[str]:
    """vLLM 0.33 lists `--enable-x, --disable-x` where 0.32 listed `--enable-x, --no-enable-x`; it takes both."""
    if not rules.unlisted_off:
        return []
    names = [spelling.removeprefix("--enable-") for spelling in spellings if spelling.startswith("--enable-")]
    return [f"--no-enable-{name}" for name in names[:1] if spellings[1:2] == [f"--disable-{name}"]]


def _truncated(text: str, rules: HelpRules, options: list[tuple[str, str]], listed: set[str]) -> str | None:
    if not options and "--help=all" in text:
        return f"it lists groups of options and no option, which takes `{rules.called} {rules.ask[-1]}`"
    if len(options) < rules.options_known / 2:
        return f"it lists {len(options)} options, and {rules.called} has had about {rules.options_known}"
    if not re.search(rules.opening, text, re.MULTILINE):
        return "its beginning is missing"
    if _in_mid_sentence(text, *options[-1], rules):
        return "it ends in mid-sentence"
    promised = _PROMISED.findall(_usage(text))
    if promised and not listed.intersection(promised[-2:]):
        return f"its usage names {promised[-1]}, which is not described any more"
    end = text.rstrip()[-_CLOSING_CHARS_MAX:] + "\n"
    if rules.closing is not None and not re.search(rules.closing, end, re.MULTILINE):
        return "its closing section is missing"
    return None


def _usage(text: str) -> str:
    """The paragraph that begins the text of argparse; empty where it is missing, or its end."""
    begin = _USAGE.search(text)
    end = _BLANK_LINE.search(text, begin.end()) if begin else None
    return text[begin.start() : end.start()] if begin and end else ""


def _in_mid_sentence(text: str, header: str, description: str, rules: HelpRules) -> bool:
    last = text.rstrip().splitlines()[-1].strip()
    if last != header.strip() and not description.endswith(last):
        return False  # something follows the last option
    if description.count("(") > description.count(")"):
        return True
    return rules.sentences and bool(description) and not description.endswith(_ENDS)


def _not_help(text: str, rules: HelpRules) -> str:
    command = f"{rules.called} {rules.ask[-1]}"
    first = next((line.strip() for line in text.splitlines() if line.strip()), None)
    if first is None:
        return f"the help text is empty; save what `{command}` prints"
    shown = "".join(char for char in first[:80] if char.isprintable())
    return f"the text lists no option of {rules.called} (it begins with {shown!r}); save what `{command}` prints"
