"""The log of a shard as a page: its last lines, harmless, and what is said when there are none."""

from __future__ import annotations

import html
import re

import pytest

from llmgw.server.admin.backend import AdminError
from llmgw.server.pages.plain_text import LINE_CHARS_MAX, plain_line, plain_lines
from tests.ctl.scripted import ScriptedBackend
from tests.pages.models import ESCAPED, ESCAPES, PRINTED, SCRIPT, failed_replica, say
from tests.pages.visitor import Visitor

LOGS = "/admin/replicas/chat-large-1a2b/logs"


def lines(page: str) -> list[str]:
    """The lines of the log as they are read."""
    log = page[page.index('<div id="log"') :]
    return [html.unescape(each) for each in re.findall(r"^<div>(.*)</div>$", log, flags=re.M)]


def test_the_last_lines_are_there_without_a_script(visitor: Visitor, backend: ScriptedBackend) -> None:
    page = visitor.http.get(f"{LOGS}?rank=1&lines=2").text
    assert lines(page) == ["two", "three"]
    assert backend.asked == [("logs", "chat-large-1a2b", 1, "engine", None, 2)]
    assert 'href="/admin/replicas/chat-large-1a2b/logs?rank=0"' in page, "the way to the other rank"
    assert 'data-url="/api/v1/replicas/chat-large-1a2b/logs?rank=1&amp;stream=engine"' in page
    assert 'name="lines" type="number" min="1" max="10000" value="2"' in page
    assert "The shard is over: this is all that it said." in page
    assert 'href="/admin/models/org/chat-large"' in page


def test_the_outputs_of_sidecars_can_be_chosen(visitor: Visitor, backend: ScriptedBackend) -> None:
    say(backend, "head\n", streams=["engine", "ray-head"], shard_over=False)
    page = visitor.http.get(f"{LOGS}?stream=ray-head").text
    assert backend.asked[-1] == ("logs", "chat-large-1a2b", 0, "ray-head", None, 200)
    assert f'href="{LOGS}?rank=0&amp;stream=engine"' in page
    assert f'href="{LOGS}?rank=0&amp;stream=ray-head" aria-current="page"' in page


def test_a_replica_that_is_gone_has_its_last_words(visitor: Visitor, backend: ScriptedBackend) -> None:
    say(backend, "out of memory\n-- the engine ended --\n")
    page = visitor.http.get("/admin/replicas/chat-large-gone/logs?rank=1").text
    assert lines(page) == ["out of memory", "-- the engine ended --"]
    assert "The replica has ended; these are its last words." in page


def test_a_failed_shard_says_why_above_its_log(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.replicas_known = [failed_replica()]
    page = visitor.http.get("/admin/replicas/chat-large-dead/logs").text
    assert "✕ failed" in page
    assert '<p class="reason">the engine ended</p>' in page


def test_a_node_that_does_not_answer_is_said_where_the_log_would_stand(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    async def logs(*asked: object) -> object:
        raise AdminError(504, "no-answer", "node01 did not answer within 10 s, so its logs cannot be read")

    backend.logs = logs  # type: ignore[assignment, method-assign]
    answer = visitor.http.get(LOGS)
    assert answer.status_code == 504
    assert "▲ Node01 did not answer within 10 s, so its logs cannot be read." in answer.text
    assert 'id="log"' in answer.text, "a script tries again"
    assert visitor.http.get("/admin/replicas/never-was/logs").status_code == 504


@pytest.mark.parametrize(
    ("query", "status"),
    [("?rank=-1", 400), ("?rank=999", 400), ("?stream=../etc", 400), ("?lines=0", 400), ("?lines=99999", 400)],
)
def test_what_cannot_be_asked_for_is_refused_in_words(
    visitor: Visitor, backend: ScriptedBackend, query: str, status: int
) -> None:
    answer = visitor.http.get(LOGS + query)
    assert answer.status_code == status
    assert "That did not work" in answer.text
    assert backend.asked == []


def test_an_unknown_replica_is_a_page_that_says_so(visitor: Visitor) -> None:
    answer = visitor.http.get("/admin/replicas/never-was/logs")
    assert answer.status_code == 404
    assert "There is no replica &#39;never-was&#39;." in answer.text


def test_lines_that_mean_harm_are_text(visitor: Visitor, backend: ScriptedBackend) -> None:
    say(backend, f"{SCRIPT}\n</div><h1>x</h1>\n{ESCAPES}\n")
    page = visitor.http.get(LOGS).text
    assert lines(page) == [SCRIPT, "</div><h1>x</h1>", ESCAPED]
    assert "<script>alert" not in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", page)


@pytest.mark.parametrize(("printed", "read"), PRINTED)
def test_a_line_reads_as_a_terminal_would_leave_it(printed: str, read: str) -> None:
    assert plain_line(printed) == read


def test_a_line_without_end_is_cut_and_counted() -> None:
    assert plain_line("x" * (LINE_CHARS_MAX + 5)) == "x" * LINE_CHARS_MAX + " … and 5 characters more"
    assert plain_lines("a\n\nb") == ["a", "", "b"]
    assert plain_lines("") == []


def test_no_more_lines_are_shown_than_were_asked_for_whatever_the_node_sends(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    say(backend, "\n" * 100_000 + "one\ntwo\n")
    assert lines(visitor.http.get(f"{LOGS}?lines=2").text) == ["one", "two"]
