"""Sentences of findings as pages show them: what is to be typed stands apart from what is only said."""

from __future__ import annotations

import re

_TICKED = re.compile(r"`([^`]+)`")
# Programs that findings name in brackets: `end it (ps -fp 812)`. In brackets alone, a command ends somewhere.
_BRACKETED = re.compile(
    r"(?<=\()(?:llmgw|nvidia-smi|systemctl|journalctl|ps|saquery|ibnetdiscover|ibstat|perfquery|dmesg|apt-get|modprobe)"
    r" [^()]+(?=\))"
)


def pieces(text: str) -> list[tuple[bool, str]]:
    """The text cut into (is it a command, its words), in order: what stands in backticks, and in brackets what
    begins with a program's name.
    """
    found: list[tuple[bool, str]] = []
    at = 0
    for match in _TICKED.finditer(text):
        found += _plain(text[at : match.start()])
        found.append((True, match[1]))
        at = match.end()
    return found + _plain(text[at:])


def _plain(text: str) -> list[tuple[bool, str]]:
    found: list[tuple[bool, str]] = []
    at = 0
    for match in _BRACKETED.finditer(text):
        found += [(False, text[at : match.start()]), (True, match[0])]
        at = match.end()
    found.append((False, text[at:]))
    return [piece for piece in found if piece[1]]
