"""Times on pages: how long ago, and the hour when pointed at."""

from __future__ import annotations

import jinja2
import pytest

from llmgw.server.pages.times import ago, iso, relative, utc, without_now

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("apart", "said"),
    [
        (0, "0 s ago"),
        (59.9, "59 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (47 * 3600, "47 h ago"),
        (48 * 3600, "2 d ago"),
        (1000 * 86400, "1000 d ago"),
        (-0.5, "0 s ago"),
        (-90, "in 1 min"),
    ],
)
def test_a_time_is_told_as_how_long_ago_it_is(apart: float, said: str) -> None:
    assert relative(NOW - apart, NOW) == said


def test_a_page_gives_the_hour_when_pointed_at_and_says_when_it_knows_none() -> None:
    environment = jinja2.Environment(autoescape=True)
    environment.filters["ago"] = ago
    template = environment.from_string("{{ at | ago }}")
    assert template.render(at=NOW, now=NOW + 7200) == (
        '<time class="ago" datetime="2023-11-14T22:13:20Z" title="2023-11-14 22:13:20 UTC">2 h ago</time>'
    )
    assert template.render(at=None, now=NOW) == "–"
    earlier, later = template.render(at=NOW, now=NOW + 1), template.render(at=NOW, now=NOW + 100)
    assert earlier != later
    assert without_now(earlier) == without_now(later)
    assert without_now(earlier) != without_now(template.render(at=NOW + 1, now=NOW + 1))


@pytest.mark.parametrize("at", [1e300, -1e300, 1e13, float("nan"), float("inf")])
def test_a_moment_that_no_calendar_has_fails_no_page(at: float) -> None:
    environment = jinja2.Environment(autoescape=True)
    environment.filters.update(ago=ago, utc=utc, iso=iso)
    assert "–" in environment.from_string("{{ at | ago }}").render(at=at, now=NOW)
    assert environment.from_string("{{ at | utc }}{{ at | iso }}").render(at=at) == "––"
