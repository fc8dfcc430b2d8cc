"""Findings as an operator reads them: the worst first, and hundreds of one kind told once, with where. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from llmgw.messages.findings import SEVERITIES, Finding
from llmgw.server.pages.places import Place, Places

ALONE_MAX = 3
"""So many findings of one check are each told in full; more are told together."""
LISTED_MAX = 100
"""Of a kind, so many places are listed: more would be the whole page."""


@dataclass(frozen=True, slots=True)
class Told:
    """One finding, its place, and what it says beside that."""

    place: Place
    what: str
    finding: Finding

    @classmethod
    def of(cls, finding: Finding, places: Places) -> Told:
        """Sentences often begin with the place that stands before them."""
        place, what = places.find(finding.where), finding.what
        for part in (place.name, place.rest):
            if part and what.startswith(f"{part} "):
                what = what[len(part) + 1 :]
        return cls(place, what, finding)


@dataclass(frozen=True, slots=True)
class Problem:
    """Findings of one check and severity. `what`, `why` and `remedy` hold for all of them where `alike`, with
    `NODE` for each one's node; else they are the first one's."""

    check: str
    severity: str
    what: str
    why: str
    remedy: str
    alike: bool
    listed: list[Told]
    count: int

    @property
    def left_out(self) -> int:
        """How many of them are not in `listed`."""
        return self.count - len(self.listed)


def group_problems(findings: Iterable[Finding], places: Places) -> list[Problem]:
    """The findings in groups, the most severe first, and otherwise in the order in which they came."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.check), []).append(finding)
    problems: list[Problem] = []
    for (severity, check), members in groups.items():
        if len(members) <= ALONE_MAX:
            problems += [_alone(Told.of(finding, places)) for finding in members]
        else:
            problems.append(_together(check, severity, members, places))
    return sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity))


def count_severities(findings: Iterable[Finding]) -> dict[str, int]:
    """How many there are of each severity, all three named."""
    counts: dict[str, int] = dict.fromkeys(SEVERITIES, 0)
    for finding in findings:
        counts[finding.severity] += 1
    return counts


def _alone(told: Told) -> Problem:
    finding = told.finding
    return Problem(finding.check, finding.severity, told.what, finding.why, finding.remedy, True, [told], 1)


def _together(check: str, severity: str, members: list[Finding], places: Places) -> Problem:
    told = [Told.of(finding, places) for finding in members]
    alike = len({_general(each) for each in told}) == 1
    first = told[0]
    what, why, remedy = _general(first) if alike else (first.what, first.finding.why, first.finding.remedy)
    return Problem(check, severity, what, why, remedy, alike, told[:LISTED_MAX], len(told))


def _general(told: Told) -> tuple[str, str, str]:
    """What, why and remedy without their place: equal for all nodes that have the same problem."""
    said = told.finding.what, told.finding.why, told.finding.remedy
    place = told.place
    for name, word in ((place.name, place.kind or "…"), (place.rest, "…")):
        if name:
            said = _without(said[0], name, word), _without(said[1], name, word), _without(said[2], name, word)
    return said


def _without(text: str, name: str, word: str) -> str:
    """`node1` is no part of `node10` or of `node1-b`."""
    return re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", lambda _: word, text) if name in text else text
