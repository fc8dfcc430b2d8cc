"""Charts as data: lines, gaps, axes, and the figures as words."""

from __future__ import annotations

import re

import pytest

from llmgw.server.pages import numbers
from llmgw.server.pages.charts import HEIGHT, LEFT, WIDTH, Chart, Series, draw

STEP_S = 10.0


def chart(*values: list[float | None], until: float = 3600.0, fold: object = None) -> Chart:
    """Of steps that end at `until`."""
    count = len(values[0])
    times = [until - (count - number) * STEP_S for number in range(count)]
    series = [Series(name=f"line {number}", values=each) for number, each in enumerate(values)]
    how = {} if fold is None else {"fold": fold}
    return draw(
        "k", "Title", "things per second", times, series,
        until=until, span_s=3600.0, step_s=STEP_S, words=numbers.per_s, **how,  # type: ignore[arg-type]
    )  # fmt: skip


def points(path: str) -> list[tuple[float, float]]:
    found = [float(each) for each in re.findall(r"-?[\d.]+", path)]
    return list(zip(found[::2], found[1::2], strict=True))


def test_a_line_goes_from_the_oldest_step_to_the_newest_and_stays_in_its_field() -> None:
    drawn = chart([0.0, 5.0, 10.0] * 120)
    line = points(drawn.lines[0].path)
    left, top, right, bottom = drawn.field
    assert len(line) == 360
    assert line == sorted(line, key=lambda point: point[0])
    assert all(left <= x <= right and top <= y <= bottom for x, y in line)
    assert line[0][1] == bottom
    assert line[2][1] == top, "the axis ends at a round number that the highest value reaches"


def test_where_there_is_no_value_there_is_a_gap_and_one_alone_is_a_dot() -> None:
    drawn = chart([1.0, 1.0, None, None, 3.0, None, 2.0, 2.0])
    pieces = drawn.lines[0].path.split("M")[1:]
    assert [len(points(piece)) for piece in pieces] == [2, 2, 2]
    dot = points(pieces[1])
    assert dot[0] == dot[1]


def test_a_server_that_has_just_started_has_its_line_at_the_right() -> None:
    drawn = chart([1.0] * 6)
    assert points(drawn.lines[0].path)[0][0] > WIDTH * 0.9
    assert [tick.words for tick in drawn.x_ticks] == [
        "60 min ago",
        "45 min ago",
        "30 min ago",
        "15 min ago",
        "now",
    ]
    assert drawn.x_ticks[0].at == LEFT


def test_what_is_older_than_the_span_is_left_out() -> None:
    assert len(points(chart([1.0] * 500).lines[0].path)) == 360


@pytest.mark.parametrize(
    ("highest", "words"),
    [
        (0.0, ["0", "0.25", "0.5", "0.75", "1"]),
        (0.0042, ["0", "0.002", "0.004", "0.006"]),
        (7.0, ["0", "2", "4", "6", "8"]),
        (100.0, ["0", "25", "50", "75", "100"]),
        (34_000.0, ["0", "10k", "20k", "30k", "40k"]),
        (2.1e6, ["0", "1M", "2M", "3M"]),
    ],
)
def test_an_axis_has_round_numbers_up_to_one_that_nothing_exceeds(highest: float, words: list[str]) -> None:
    drawn = chart([highest] * 3)
    assert [tick.words for tick in drawn.y_ticks] == words
    assert drawn.y_ticks[0].at == HEIGHT - 22


def test_the_figures_are_there_as_words_too() -> None:
    drawn = chart([2.0] * 30 + [4.0] * 30, [None] * 60)
    assert drawn.summary == "line 0: now 4/s, highest 4/s; line 1: now –, highest –"
    assert [row.words for row in drawn.rows] == [["2/s", "–"], ["4/s", "–"]]
    assert drawn.rows[0].at == 3600.0 - 600
    assert drawn.row_s == 300
    assert len(drawn.columns) == 10
    assert drawn.columns[0].words == "10 min ago: line 0 2/s, line 1 –"


def test_rows_are_the_mean_or_the_highest_of_their_steps() -> None:
    assert chart([0.0, 6.0]).rows[0].words == ["3/s"]
    assert chart([0.0, 6.0], fold=max).rows[0].words == ["6/s"]


def test_a_chart_of_nothing_says_so_and_has_its_axes() -> None:
    for drawn in (chart([None] * 5), draw_nothing()):
        assert drawn.empty
        assert drawn.lines[0].path == ""
        assert drawn.y_ticks
    assert not chart([None, 0.0]).empty, "nothing asked is not the same as nothing known"


def draw_nothing() -> Chart:
    return draw(
        "k", "T", "u", [], [Series(name="a", values=[])],
        until=10.0, span_s=3600.0, step_s=STEP_S, words=numbers.per_s,
    )  # fmt: skip


def test_numbers_that_are_none_are_drawn_as_none() -> None:
    drawn = chart([float("nan"), 1.0, float("inf")])
    assert "nan" not in drawn.lines[0].path
    assert "inf" not in drawn.lines[0].path
    assert len(points(drawn.lines[0].path)) == 2
