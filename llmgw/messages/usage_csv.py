"""Usage as CSV for spreadsheets: of `ctl usage -o csv` and of the usage page."""

from __future__ import annotations

import csv
import io
import time

from llmgw.messages.usage_views import UsageEntry, UsageView

COUNTS = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens", "estimated")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def usage_csv(view: UsageView) -> str:
    """A line with the columns' names, and one for each entry. What is told apart comes first, in `by`'s order.

    Names that a spreadsheet would take for a formula have an apostrophe before them, which it takes for "this is
    text" (owasp.org/www-community/attacks/CSV_Injection): whoever names a model does not get to compute.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*view.by, *COUNTS])
    for entry in view.entries:
        writer.writerow([*(_plain(name) for name in told_apart(entry, view.by)), *numbers(entry)])
    return text.getvalue()


def told_apart(entry: UsageEntry, by: list[str], none: str = "") -> list[str]:
    """What tells an entry from the others: days and hours of UTC, a key's id, a model; `none` for no key."""
    named = []
    for word in by:
        if word in ("day", "hour"):
            form = "%Y-%m-%d" if word == "day" else "%Y-%m-%d %H:00"
            named.append(time.strftime(form, time.gmtime(entry.at or 0)))
        else:
            named.append((entry.key if word == "key" else entry.model) or none)
    return named


def numbers(entry: UsageEntry) -> list[int]:
    """The numbers of `COUNTS`."""
    return [getattr(entry, name) for name in COUNTS]


def _plain(name: str) -> str:
    return f"'{name}" if name.startswith(_FORMULA) else name
