"""What stands on pages can be seen: characters that hide, reorder or end text are shown as their escapes.

Names come from nodes, switches, engines and clients. One that turns what follows it around, or differs from another
in what nobody sees, must not look like what it is not.
"""

from __future__ import annotations

import re
from typing import Any

from jinja2.filters import do_urlencode

# Controls but tab and the ends of lines, surrogates that stand alone, and what Unicode calls format characters:
# zero-width ones, marks, embeddings, overrides and isolates of direction (UAX #9), tags (UTR #36).
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def readable(value: Any) -> Any:
    """What a template puts on a page: a text with every such character as `\\u202e`; all else as it is.

    Markup has been made of what went through here already.
    """
    if type(value) is str and not value.isprintable():
        return _UNSEEN.sub(_escape, value)
    return value


def as_path(value: Any) -> str:
    """Jinja's `urlencode`, also for a text that no encoding has."""
    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()
    return do_urlencode(value)


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
