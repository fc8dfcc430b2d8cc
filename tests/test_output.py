"""What commands print, as a program or a person gets it."""

from __future__ import annotations

import io
import json
import re
import sys

import msgspec
import pytest

from llmgw.cli.output import Column, format_age, print_json, print_table


class Terminal(io.StringIO):
    """A stdout that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Thing(msgspec.Struct):
    zeta: int
    alpha: str | None = None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0s"),
        (0.4, "0s"),
        (-3, "0s"),
        (42, "42s"),
        (192, "3m12s"),
        (180, "3m"),
        (3605, "1h"),
        (7500, "2h5m"),
        (90000, "1d1h"),
        (86400 * 400, "400d"),
    ],
)
def test_an_age_has_at_most_two_units(seconds: float | None, text: str) -> None:
    assert format_age(seconds) == text


def test_json_keeps_the_order_of_the_struct(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([Thing(zeta=1), Thing(zeta=2, alpha="ä")])
    out = capsys.readouterr().out
    assert json.loads(out) == [{"zeta": 1, "alpha": None}, {"zeta": 2, "alpha": "ä"}]
    assert out.index("zeta") < out.index("alpha")
    assert out.endswith("]\n")


def test_a_piped_table_is_whole_plain_and_lined_up(capsys: pytest.CaptureFixture[str]) -> None:
    wide = "x" * 500
    rows = [["node01", 8, "ready", wide], ["n2", 10, None, "[red]no markup[/red]"]]
    print_table(["node", Column("gpus", right=True), Column("state", state=True), "reason"], rows)
    assert capsys.readouterr().out.splitlines() == [
        "NODE    GPUS  STATE  REASON",
        f"node01     8  ready  {wide}",
        "n2        10  -      [red]no markup[/red]",
    ]


def test_wide_characters_do_not_push_columns_out_of_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a", "b"], [["模型", "x"], ["abcd", "y"]])
    assert capsys.readouterr().out.splitlines() == ["A     B", "模型  x", "abcd  y"]


def test_control_characters_of_an_engines_output_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(["tail"], [["\x1b[2J\x07hello\nworld"]])
    assert capsys.readouterr().out == "TAIL\n\\x1b[2J\\x07hello world\n"


def test_no_rows_are_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["node"], [], empty="No node has registered yet.")
    assert capsys.readouterr().out == "No node has registered yet.\n"


def test_a_terminal_gets_colours_unless_it_does_not_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> str:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        print_table(["node", Column("state", state=True)], [["node01", "ready"], ["node02", "lost since 3m"]])
        return terminal.getvalue()

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32mready" in drawn()
    assert "\x1b[31mlost since 3m" in drawn()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in drawn()


def test_a_narrow_terminal_wraps_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    print_table(["node", "reason"], [["node01", "abcdefghij" * 6]])
    drawn = "".join(line[8:].strip() for line in terminal.getvalue().splitlines()[1:])
    assert drawn.replace("\x1b[0m", "") == "abcdefghij" * 6


def test_on_a_narrow_terminal_names_stay_whole_and_spare_columns_are_named_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    heads = ["replica", Column("profile", spare=1), Column("endpoint", spare=2), "notes"]
    print_table(heads, [["small-31ad7ad0", "default", "127.0.1.12:21000", "wanted by the catalog since today"]])
    drawn = re.sub(r"\x1b\[[0-9]*m", "", terminal.getvalue())
    assert "small-31ad7ad0  default" in drawn
    assert "127.0.1.12" not in drawn
    assert "too narrow for: endpoint" in drawn
    assert all(len(line.rstrip()) <= 50 for line in drawn.splitlines())
