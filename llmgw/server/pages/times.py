"""Times on pages: relative to now, with the absolute one on hover; `ago.js` keeps them current by these rules."""

from __future__ import annotations

import datetime
import math
import re
import time

import jinja2
from markupsafe import Markup

UNKNOWN = "–"
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
_RELATIVE = re.compile(r'(<time class="ago"[^>]*>)[^<]*|(<meta name="(?:now|news)" content=")[^"]*')


def utc(at: float) -> str:
    """Seconds since the epoch → `2026-08-06 16:11:23 UTC`."""
    return _date(at, "%Y-%m-%d %H:%M:%S UTC")


def iso(at: float) -> str:
    """For `<time datetime>`."""
    return _date(at, "%Y-%m-%dT%H:%M:%SZ")


def _date(at: float, form: str) -> str:
    try:
        return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return UNKNOWN  # a moment that no calendar has: a page must not fail of it


@jinja2.pass_context
def ago(context: jinja2.runtime.Context, at: float | None) -> Markup | str:
    """`{{ at | ago }}`: seconds since the epoch → `<time>` with `5 min ago`, and the absolute time in its title.

    What is not known is `–`. `now` is the page's own, so that all of its times are of one moment.
    """
    if at is None or not math.isfinite(at):
        return UNKNOWN
    now = context.get("now")
    said = relative(at, time.time() if now is None else now)
    return Markup('<time class="ago" datetime="{}" title="{}">{}</time>').format(iso(at), utc(at), said)


def relative(at: float, now: float) -> str:
    """`12 s ago`, `5 min ago`, `3 h ago`, `4 d ago`; `in 5 min` for what is still to come."""
    apart = int(abs(now - at))
    if apart < _MINUTE_S:
        span = f"{apart} s"
    elif apart < _HOUR_S:
        span = f"{apart // _MINUTE_S} min"
    elif apart < 2 * _DAY_S:
        span = f"{apart // _HOUR_S} h"
    else:
        span = f"{apart // _DAY_S} d"
    return f"in {span}" if at - now >= 1 else f"{span} ago"


def without_now(page: str) -> str:
    """A page without what says how long ago, and of when it is: two that differ in nothing else say the same."""
    return _RELATIVE.sub(lambda found: found[1] or found[2], page)
