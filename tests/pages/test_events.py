"""The stream that tells open pages of news: what is told and how often, who may listen, and when it ends."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from llmgw.messages.findings import Finding
from llmgw.server.admin.app import create_admin_app
from llmgw.server.pages.events import EventLimits
from llmgw.server.pages.sessions import BrowserSessions
from tests.ctl.scripted import TOKEN, ScriptedBackend, ServedAdmin
from tests.pages.chromium import until
from tests.pages.listener import Listener
from tests.pages.visitor import Visitor

QUICK = EventLimits(look_s=0.05, moved_s=0.1, findings_s=0.05, news_s=60, comment_s=60)


@contextlib.contextmanager
def serving(limits: EventLimits = QUICK, **changes: Any) -> Iterator[tuple[ScriptedBackend, Visitor]]:
    """The admin app with limits of a test, and somebody who is logged in."""
    backend = ScriptedBackend()
    served = ServedAdmin(backend, app=create_admin_app(backend, secure=False, event_limits=limits, **changes))
    visitor = Visitor(served.url)
    visitor.log_in()
    try:
        yield backend, visitor
    finally:
        backend.news.end()
        served.stop()


def test_what_happens_is_told_at_once_and_what_came_before_the_stream_at_its_start() -> None:
    with serving() as (backend, visitor):
        page = Listener(visitor)
        assert page.answer.headers["content-type"].startswith("text/event-stream")
        assert page.answer.headers["cache-control"] == "no-store"
        first = page.hear()
        assert first[0] == "news"
        backend.news.happen()
        second = page.hear()
        assert second[0] == "news"
        assert second[1] != first[1]
        page.close()


def test_many_things_at_once_are_one_piece_of_news() -> None:
    with serving(EventLimits(look_s=0.3)) as (backend, visitor):
        page = Listener(visitor)
        page.hear()
        began = time.monotonic()
        versions = []
        while len(versions) < 2:
            for _ in range(50):
                backend.news.happen()
            versions.append(page.hear()[1])
        assert time.monotonic() - began >= 0.5
        assert len(set(versions)) == 2
        page.close()


def test_figures_that_move_are_told_now_and_then_and_silence_is_filled_with_comments() -> None:
    with serving(EventLimits(look_s=0.05, moved_s=0.1, news_s=60, comment_s=0.1)) as (backend, visitor):
        page = Listener(visitor)
        page.hear()
        assert page.hear()[0] == ""
        backend.news.move()
        assert until(lambda: page.hear()[0] == "news", "figures are told")
        page.close()


def test_news_is_told_in_any_case_so_that_a_page_knows_a_dead_stream() -> None:
    with serving(EventLimits(look_s=0.05, news_s=0.2)) as (_, visitor):
        page = Listener(visitor)
        assert [page.hear()[0] for _ in range(3)] == ["news"] * 3
        page.close()


def test_a_finding_that_comes_of_time_alone_is_news() -> None:
    with serving() as (backend, visitor):
        page = Listener(visitor)
        page.hear()
        backend.nodes_known[0].findings.append(
            Finding(check="certificate", severity="warning", where="node01", what="its certificate ends soon")
        )
        assert page.hear()[0] == "news"
        page.close()


def test_whatever_an_operator_changes_is_news() -> None:
    with serving() as (_, visitor):
        page = Listener(visitor)
        page.hear()
        token = {"authorization": f"Bearer {TOKEN}"}
        assert httpx.post(f"{visitor.url}/api/v1/nodes/node01/cordon", headers=token, trust_env=False).is_success
        assert page.hear()[0] == "news"
        page.close()


def test_a_stream_goes_on_behind_what_was_told_and_a_new_one_behind_what_its_page_is_made_of() -> None:
    with serving() as (backend, visitor):
        page = Listener(visitor)
        version = page.hear()[1]
        page.close()
        again = Listener(visitor, **{"last-event-id": version})
        backend.news.happen()
        assert again.hear()[1] != version, "nothing was told that was known already"
        again.close()
        made_of = re.findall(r'<meta name="news" content="([^"]*)">', visitor.http.get("/admin").text)[0]
        assert made_of == backend.news.version
        again = Listener(visitor, after=made_of)
        backend.news.happen()
        assert again.hear()[1] != made_of, "nothing was told that is on the page already"
        again.close()
        for of_nobody in ("another.1.2", "e1", "e1.1", "e1.-1.2", "e1.1.2.3", "e1.99999999999999999999999.1"):
            page = Listener(visitor, after=of_nobody)
            assert page.hear() == ("news", backend.news.version)
            page.close()


def test_logging_out_and_a_revoked_token_end_it_with_a_word() -> None:
    with serving() as (backend, visitor):
        page = Listener(visitor)
        page.hear()
        other = Visitor(visitor.url)
        other.http.cookies.update(visitor.http.cookies)
        other.http.post("/admin/logout", data={"csrf": other.csrf()})
        assert until(lambda: page.hear()[0] == "over", "the end is told")
        assert page.hear() == ("end", "")
        visitor.log_in()
        page = Listener(visitor)
        by_token = Listener(Visitor(visitor.url), authorization=f"Bearer {TOKEN}")
        for each in (page, by_token):
            assert each.hear()[0] == "news"
        backend.tokens_known.clear()
        for each in (page, by_token):
            assert each.hear()[0] == "over"
            assert each.hear() == ("end", "")


def test_a_session_that_is_over_its_time_ends_its_stream() -> None:
    now = [0.0]
    with serving(sessions=BrowserSessions(lambda: now[0])) as (_, visitor):
        page = Listener(visitor)
        page.hear()
        now[0] = 13 * 3600.0
        assert page.hear()[0] == "over"
        page.close()


def test_nobody_listens_without_a_session_and_is_not_sent_to_a_form_which_no_stream_can_fill_in() -> None:
    with serving() as (_, visitor):
        asked = Visitor(visitor.url).http.get("/admin/events")
        assert (asked.status_code, asked.json()["code"]) == (401, "no-token")
        assert visitor.http.get("/admin/events?all=1").status_code == 400
        assert visitor.http.head("/admin/events").headers["content-type"].startswith("text/event-stream")


def test_streams_are_bounded_for_each_session_and_in_all_and_places_are_given_back() -> None:
    with serving(EventLimits(look_s=0.05, per_session_max=2, streams_max=3)) as (_, visitor):
        second = Visitor(visitor.url)
        second.log_in()
        pages = [Listener(visitor), Listener(visitor)]
        refused = visitor.http.get("/admin/events")
        assert refused.status_code == 429
        assert refused.json()["code"] == "too-many-streams"
        assert refused.json()["message"].startswith("this session follows the fleet on 2 pages")
        pages.append(Listener(second))
        assert second.http.get("/admin/events").json()["message"].startswith("3 pages follow the fleet")
        for page in pages:
            page.close()

        def there_is_room() -> bool:
            page = Listener(second)
            page.close()
            return page.answer.status_code == 200

        assert until(there_is_room, "who leaves gives the place back")


def test_a_stop_of_the_server_ends_every_stream_at_once() -> None:
    with serving(EventLimits()) as (backend, visitor):
        page = Listener(visitor)
        page.hear()
        began = time.monotonic()
        backend.news.end()
        backend.news.happen()  # wakes nobody any more
        assert page.hear() == ("end", "")
        assert time.monotonic() - began < 1.5


def test_one_that_nobody_reads_does_not_last() -> None:
    with serving(EventLimits(look_s=0.02, news_s=0.02, stream_s=0.3, per_session_max=1)) as (_, visitor):
        cookie = "; ".join(f"{name}={value}" for name, value in visitor.http.cookies.items())
        host, _, port = visitor.url.removeprefix("http://").partition(":")
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            deaf.connect((host, int(port)))
            deaf.sendall(f"GET /admin/events HTTP/1.1\r\nhost: {host}\r\ncookie: {cookie}\r\n\r\n".encode())
            assert deaf.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 200"

            def there_is_room() -> bool:
                page = Listener(visitor)
                page.close()
                return page.answer.status_code == 200

            assert until(there_is_room, "its place is free again")


@pytest.mark.parametrize("path", ["/admin", "/admin/fabrics"])
def test_a_page_that_would_be_the_same_is_not_sent_again(path: str) -> None:
    with serving() as (backend, visitor):
        page = visitor.http.get(path)
        etag = page.headers["etag"]
        same = visitor.http.get(path, headers={"if-none-match": etag})
        assert (same.status_code, same.content) == (304, b"")
        backend.nodes_known.clear()
        backend.replicas_known.clear()
        other = visitor.http.get(path, headers={"if-none-match": etag})
        assert other.status_code == (200 if path == "/admin" else 304)


def test_pages_are_compressed_for_whoever_takes_it() -> None:
    with serving() as (_, visitor):
        plain = visitor.http.get("/admin", headers={"accept-encoding": "identity"})
        small = visitor.http.get("/admin", headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in plain.headers
        assert small.headers["content-encoding"] == "gzip"
        assert int(small.headers["content-length"]) < int(plain.headers["content-length"]) / 2
        assert small.headers["vary"] == "accept-encoding"
        assert small.headers["etag"] == plain.headers["etag"]
        assert visitor.http.get("/admin/nothing").headers.get("etag") is None
