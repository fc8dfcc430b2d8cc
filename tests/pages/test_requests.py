"""The pages of the last requests and of usage: filters, paging, what is hostile, and CSV."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from llmgw.messages.routes import Outcome
from llmgw.messages.usage_csv import usage_csv
from llmgw.messages.usage_views import UsageEntry, UsageView
from llmgw.server.pages.usage_page import ROWS_SHOWN_MAX
from tests.ctl.scripted import ScriptedBackend, ServedAdmin
from tests.pages.visitor import Visitor

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def served() -> Iterator[ServedAdmin]:
    server = ServedAdmin(ScriptedBackend())
    yield server
    server.stop()


@pytest.fixture
def backend(served: ServedAdmin) -> ScriptedBackend:
    served.backend.__init__()  # type: ignore[misc]
    return served.backend


def show(visitor: Visitor, path: str = "/admin/requests", **query: Any) -> str:
    answer = visitor.http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.text


def ids(page: str) -> list[int]:
    return [int(found) for found in re.findall(r'<tr id="request-(\d+)"', page)]


def tell(backend: ScriptedBackend) -> None:
    backend.recent.tell(
        Outcome("chat-small", "chat-small-3c4d", 200, key="k1", total_s=1.5, request_id="req-1", stream=True),
        Outcome("chat-small", "chat-small-3c4d", 200, 1, retried_because="chat-small-0: it answered 503"),
        Outcome("org/chat-large", None, 503, error=f"Nothing is ready {HOSTILE}.", request_id=HOSTILE),
        Outcome(
            "chat-small", "chat-small-3c4d", 499, error="the client left", estimated=True, completion_tokens=9
        ),
        Outcome("elsewhere", "static:elsewhere:0", 502, error="it broke", retry_refused=True, queued_s=3.25),
        Outcome("", None, 401, error="wrong_api_key"),
    )


def test_what_the_engine_itself_refused_says_that_it_did(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.recent.tell(Outcome("chat-small", "chat-small-3c4d", 500))
    assert "chat-small-3c4d itself answered 500" in show(visitor)


def test_every_request_says_how_it_ended_and_leads_to_where_it_can_be_seen(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    tell(backend)
    page = show(visitor)
    assert ids(page) == [6, 5, 4, 3, 2, 1]
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for words in (
        "200 ● answered",
        "200 ↻ tried again",
        "Tried again since chat-small-0: it answered 503.",
        "503 ✕ service unavailable",
        "499 ◌ client left",
        "401 ▲ unauthorized",
        "wrong_api_key",
        "Another engine was not asked: the model's retry budget was spent.",
        "alice",
        "3.25 s",
    ):
        assert words in re.sub(r"\s+", " ", text), words
    assert HOSTILE not in page
    assert f"Nothing is ready {HOSTILE}." in html.unescape(page)
    links = set(re.findall(r'href="([^"]+)"', page))
    assert {
        "/admin/models/org/chat-large",
        "/admin/replicas/chat-small-3c4d",
        "/admin/replicas/chat-small-3c4d/logs",
        "/admin/history?subject=chat-small-3c4d",
        "/api/v1/requests",
    } <= links
    assert not [link for link in links if "static:" in link], "a static endpoint has no logs here"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"model": "chat"}, [3]),
        ({"model": "chat-small", "status": "2xx"}, [2, 1]),
        ({"status": "failed"}, [6, 5, 4, 3]),
        ({"status": "499"}, [4]),
        ({"key": "alice"}, [1]),
        ({"endpoint": "static:elsewhere:0"}, [5]),
        ({"id": "req-1"}, [1]),
        ({"model": "", "status": "", "key": " ", "endpoint": "", "id": ""}, [6, 5, 4, 3, 2, 1]),
        ({"id": "req-none"}, []),
    ],
)
def test_requests_are_chosen_by_a_form(
    visitor: Visitor, backend: ScriptedBackend, query: dict[str, str], found: list[int]
) -> None:
    tell(backend)
    page = show(visitor, **query)
    assert ids(page) == found
    if not found:
        assert "No request that is still known is like that." in page


def test_pages_of_requests_go_by_number_and_keep_what_was_asked(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    assert "No request has ended since the server started." in show(visitor)
    for _ in range(60):
        backend.recent.tell(Outcome("chat-small", "e", 200), Outcome("chat-small", "e", 500))
    page = show(visitor, model="chat-small", status="failed")
    assert ids(page) == list(range(120, 20, -2))
    older = html.unescape(re.findall(r'href="([^"]+)" rel="next"', page)[0])
    assert older == "/admin/requests?model=chat-small&status=failed&before=22"
    backend.recent.tell(Outcome("chat-small", "e", 500))
    page = visitor.http.get(older).text
    assert ids(page) == list(range(20, 0, -2)), "what came meanwhile moves nothing"
    assert 'rel="next"' not in page
    assert 'href="/admin/requests?model=chat-small&amp;status=failed">Newest' in page
    assert 'href="/api/v1/requests?model=chat-small&amp;status=failed&amp;before=22"' in page


@pytest.mark.parametrize("query", ["status=bad", "before=0", "before=x", "key=%00", "modle=x", "model=a&model=b"])
def test_what_cannot_be_asked_of_requests_is_a_sentence_on_a_page(visitor: Visitor, query: str) -> None:
    refused = visitor.http.get(f"/admin/requests?{query}")
    assert refused.status_code == 400
    assert 'role="alert"' in refused.text


# Usage.


def test_usage_is_of_the_last_seven_days_unless_others_are_asked_for(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    page = show(visitor, "/admin/usage")
    today = datetime.now(UTC).date()
    name, from_s, to_s, key, model, by = backend.asked[-1]
    assert (name, key, model, by) == ("usage", None, None, ["day", "key", "model"])
    assert datetime.fromtimestamp(from_s, UTC) == datetime.combine(
        today - timedelta(days=6), datetime.min.time(), UTC
    )
    assert to_s - from_s == 7 * 86_400
    for words in ("team-a", "1,000", "2023-11-14", ">=m<", "Together"):
        assert words in page
    query = {"first": "2026-11-01", "last": "2026-11-30", "by": "model", "key": "alice", "model": "chat"}
    page = show(visitor, "/admin/usage", **query)
    start = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp())
    assert backend.asked[-1] == (
        "usage", start, start + 30 * 86_400, "3f9a1c2d55", "org/chat-large", ["model"],
    )  # fmt: skip
    links = [html.unescape(link) for link in re.findall(r'href="([^"]+)"', page)]
    assert "/api/v1/usage?from=2026-11-01&to=2026-12-01&by=model&key=alice&model=chat" not in links
    assert "/admin/usage.csv?first=2026-11-01&last=2026-11-30&by=model&key=alice&model=chat" in links
    show(visitor, "/admin/usage", key="(none)")
    assert backend.asked[-1][3] == "", "requests that came without a key"


def test_the_api_that_is_linked_answers_what_the_page_shows(visitor: Visitor, backend: ScriptedBackend) -> None:
    page = show(visitor, "/admin/usage", first="2026-11-01", last="2026-11-02", key="alice", by="key")
    shown = backend.asked[-1]
    (link,) = [html.unescape(each) for each in re.findall(r'href="(/api/[^"]+)"', page)]
    assert visitor.http.get(link).status_code == 200
    assert backend.asked[-1] == shown


def test_usage_as_csv_is_a_file_with_the_columns_of_ctl(visitor: Visitor, backend: ScriptedBackend) -> None:
    answer = visitor.http.get("/admin/usage.csv", params={"first": "2026-11-01", "last": "2026-11-02"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="llmgw-usage-2026-11-01-2026-11-02.csv"'
    text = answer.content.decode("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[0] == {
        "day": "2023-11-14", "key": "team-a", "model": "m", "requests": "3", "errors": "0",
        "prompt_tokens": "1000", "cached_tokens": "5", "completion_tokens": "0", "estimated": "0",
    }  # fmt: skip
    assert rows[1]["model"] == "'=m", "no formula"


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", 'a"b', "a,b", "a\nb", "é漢"])
def test_no_name_is_a_formula_and_all_come_back_as_they_are(name: str) -> None:
    view = UsageView(
        from_s=0, to_s=1, by=["model"], entries=[UsageEntry(model=name, requests=7)], total=UsageEntry()
    )
    rows = list(csv.reader(io.StringIO(usage_csv(view), newline="")))
    assert rows[1][1] == "7"
    assert rows[1][0].removeprefix("'") == name
    assert not rows[1][0].startswith(("=", "+", "-", "@", "\t", "\r"))


def test_a_page_shows_so_many_rows_and_says_where_the_others_are(
    visitor: Visitor, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def many(**asked: Any) -> UsageView:
        entries = [UsageEntry(at=number * 86_400, model=f"m{number}", requests=1) for number in range(600)]
        return UsageView(from_s=0, to_s=1, by=["day", "model"], entries=entries, total=UsageEntry(requests=600))

    monkeypatch.setattr(backend.usage, "view", many)
    page = show(visitor, "/admin/usage", by="day,model")
    assert page.count("<tr>") == ROWS_SHOWN_MAX + 2
    assert page.index(">m599<") < page.index(">m598<"), "the newest first"
    assert "100 more rows are in the" in page
    backend.usage.empty = True
    monkeypatch.undo()
    assert "Nothing was used in that time." in show(visitor, "/admin/usage")


@pytest.mark.parametrize(
    "query",
    ["first=2026-13-01", "first=20261101", "last=2026-W01-1", "first=2026-11-02&last=2026-11-01", "by=week",
     "first=1970-01-01", "first=0001-01-01", "last=9999-12-31", "key=a%0ab", "x=1"],
)  # fmt: skip
def test_what_cannot_be_asked_of_usage_is_a_sentence_on_a_page(visitor: Visitor, query: str) -> None:
    for path in ("/admin/usage", "/admin/usage.csv"):
        refused = visitor.http.get(f"{path}?{query}")
        assert refused.status_code == 400, query
        assert 'role="alert"' in refused.text


def test_usage_is_for_whoever_has_logged_in(served: ServedAdmin) -> None:
    for path in ("/admin/usage", "/admin/usage.csv", "/admin/requests"):
        sent = httpx.get(served.url + path, trust_env=False)
        assert (sent.status_code, sent.headers["location"]) == (303, f"/admin/login?next={path}")
