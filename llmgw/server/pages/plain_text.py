"""What programs print, as a page may show it: lines without colours, cursor movements and control characters.

`static/plain_text.js` does the same to what a script follows.
"""

from __future__ import annotations

import re

LINE_CHARS_MAX = 20_000
"""Of one line; the rest is counted. A megabyte without a line break would make a page that nobody can scroll."""
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
"""CSI, then OSC and the other strings, then what else begins with ESC (ECMA-48, sections 5.3 to 5.6)."""
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f]"
)
"""Controls, what has no width, and what turns the direction of writing: a line must read as it was printed."""


def plain_lines(text: str) -> list[str]:
    """Lines as a terminal would leave them: after a carriage return, only what was written last."""
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    return [plain_line(line) for line in lines]


def plain_line(line: str) -> str:
    """One line, bounded in length."""
    last = _ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2]
    plain = _UNSEEN.sub("", last)
    if len(plain) > LINE_CHARS_MAX:
        return f"{plain[:LINE_CHARS_MAX]} … and {len(plain) - LINE_CHARS_MAX} characters more"
    return plain
