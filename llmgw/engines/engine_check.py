"""Puts a check together: an engine's help texts, our widest commands, a profile's own arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmgw.engines.base import EngineAdapter
from llmgw.engines.flag_check import check_flags, flags_in
from llmgw.engines.help_rules import help_rules
from llmgw.engines.help_text import NotHelpError, read_help
from llmgw.engines.widest import widest_flags
from llmgw.messages.admin import EngineCheck, FlagCheck


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A check, and for every program whose text is not whole a sentence that says what is missing."""

    check: EngineCheck
    doubts: list[str]


def check_engine(
    adapter: EngineAdapter,
    text: str,
    *,
    sidecars: Mapping[str, str | None] | None = None,
    version: str | None = None,
    args: Sequence[str] = (),
) -> Checked:
    """Hold everything that the adapter would give the engine, and `args` of a profile, against its help.

    `sidecars` is program → its help, for programs that are started beside the engine; None is one that is there
    and could not be asked. Those that are not in it are not checked. `version` is what the engine said of itself;
    else it is looked for in the text. Raises NotHelpError when `text` is nobody's help.
    """
    ours = widest_flags(adapter)  # type: ignore[arg-type]  # a Protocol does not say that it can be hashed
    rules = help_rules(adapter.name)
    known = read_help(text, rules)
    flags = list(dict.fromkeys([*ours[adapter.name], *flags_in(args, rules)]))
    found = check_flags(flags, known, rules)
    doubts = [] if known.truncated is None else [_doubt(rules.called, known.truncated)]
    for program, help_text in (sidecars or {}).items():
        if program in ours and program != adapter.name:
            verdicts, doubt = _check_sidecar(program, ours[program], help_text)
            found += verdicts
            doubts += [doubt] if doubt else []
    verdicts_ok = [each.ok for each in found]
    return Checked(
        check=EngineCheck(
            engine=adapter.name,
            version=version or known.version,
            ok=False if False in verdicts_ok else None if None in verdicts_ok else True,
            truncated=bool(doubts),
            flags=found,
        ),
        doubts=doubts,
    )


def _check_sidecar(program: str, flags: Sequence[str], text: str | None) -> tuple[list[FlagCheck], str | None]:
    rules = help_rules(program)
    unknown = [FlagCheck(flag=f"{rules.called} {flag}", ok=None) for flag in flags]
    if text is None:
        return unknown, f"there is no help text of {rules.called}"
    try:
        known = read_help(text, rules)
    except NotHelpError as error:
        return unknown, str(error)
    found = [
        FlagCheck(flag=f"{rules.called} {each.flag}", ok=each.ok, line=each.line, nearest=each.nearest)
        for each in check_flags(flags, known, rules)
    ]
    return found, None if known.truncated is None else _doubt(rules.called, known.truncated)


def _doubt(called: str, why: str) -> str:
    return f"the help text of {called} looks truncated: {why}"
