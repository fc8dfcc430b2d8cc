"""Logging in and out, and what a browser's session may do."""

from __future__ import annotations

import asyncio
import re

import pytest

from llmgw.messages.admin import TokenView
from llmgw.server.admin.app import create_admin_app
from llmgw.server.admin.auth import FAILURES_BURST_MAX
from llmgw.server.pages.login import safe_next
from llmgw.server.pages.sessions import IDLE_S_MAX, SESSION_S_MAX, BrowserSessions
from tests.ctl.scripted import STARTED_AT, TOKEN, ScriptedBackend, ServedAdmin
from tests.pages.visitor import Visitor


@pytest.fixture
def visitor(served: ServedAdmin) -> Visitor:
    return Visitor(served.url)


def test_whoever_is_not_logged_in_is_sent_to_the_form_and_back_to_where_they_wanted(visitor: Visitor) -> None:
    sent = visitor.http.get("/admin/fabrics/ib-a")
    assert sent.status_code == 303
    assert sent.headers["location"] == "/admin/login?next=/admin/fabrics/ib-a"
    assert visitor.http.get("/", headers={"accept": "text/html"}).status_code == 303
    assert visitor.http.get("/").json()["code"] == "no-token"
    done = visitor.log_in(onward="/admin/fabrics/ib-a")
    assert (done.status_code, done.headers["location"]) == (303, "/admin/fabrics/ib-a")
    assert visitor.http.get("/admin/fabrics/ib-a").status_code == 200
    assert visitor.http.get("/admin/login").headers["location"] == "/admin"


@pytest.mark.parametrize(
    "path",
    [
        "/admin/models/a%3Fb%23c?said=1",
        "/admin/models/x%252Fy",
        "/admin/fabrics/one%2Fother",
        "/admin/models/%F0%9F%90%88%20a&b=c",
        "/admin/history?model=a%26b%2Fc",
    ],
)
def test_an_address_with_an_odd_name_in_it_is_the_same_after_logging_in(visitor: Visitor, path: str) -> None:
    form = visitor.http.get(path, headers={"accept": "text/html"}).headers["location"]
    onward = visitor.field(visitor.http.get(form).text, "next")
    assert visitor.log_in(onward=onward).headers["location"] == path


def test_the_cookie_is_out_of_the_reach_of_scripts_and_of_other_sites(visitor: Visitor) -> None:
    cookies = visitor.log_in().headers.get_list("set-cookie")
    session = next(each for each in cookies if each.startswith("llmgw-session="))
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in session.split(";")}
    assert TOKEN not in session
    assert "Secure" not in session  # plain HTTP, which only loopback is answered on


def test_under_tls_the_cookie_is_secure_and_of_this_host_only(backend: ScriptedBackend) -> None:
    sent: list[tuple[bytes, bytes]] = []

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            sent.extend(message["headers"])  # type: ignore[arg-type]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http", "method": "GET", "path": "/admin/login", "query_string": b"", "headers": [],
        "client": ("10.0.0.9", 1), "root_path": "", "scheme": "https", "server": ("x", 443),
        "http_version": "1.1",
    }  # fmt: skip
    asyncio.run(create_admin_app(backend, secure=True)(scope, receive, send))
    (cookie,) = [value.decode() for name, value in sent if name == b"set-cookie"]
    assert cookie.startswith("__Host-llmgw-visitor=")
    assert "Secure" in cookie
    assert "Domain" not in cookie


def test_a_wrong_token_is_said_and_counts_as_a_guess(visitor: Visitor, backend: ScriptedBackend) -> None:
    answers = [visitor.log_in(f"guess-{n}") for n in range(FAILURES_BURST_MAX + 1)]
    assert [answer.status_code for answer in answers] == [401] * FAILURES_BURST_MAX + [429]
    assert "This token is not known" in answers[0].text
    assert int(answers[-1].headers["retry-after"]) > 0
    # The same count holds for headers: the form is no second set of guesses.
    assert visitor.http.get("/api/v1/server", headers={"authorization": "Bearer guess"}).status_code == 429
    assert not [answer for answer in answers if "guess-" in answer.text], "a token is never shown again"


@pytest.mark.parametrize("token", ["", " ", "x" * 600, "schlüssel"])
def test_what_is_no_token_never_reaches_the_backend(
    visitor: Visitor, backend: ScriptedBackend, token: str
) -> None:
    assert visitor.log_in(token).status_code == 400
    assert backend.authenticated == 0


def test_a_form_that_our_page_did_not_send_logs_nobody_in(visitor: Visitor, served: ServedAdmin) -> None:
    page = visitor.http.get("/admin/login").text
    form = {"token": TOKEN, "proof": visitor.field(page, "proof"), "next": "/admin"}
    assert visitor.http.post("/admin/login", data={**form, "proof": "0" * 64}).status_code == 403
    # The proof of one visitor is none for another: a page elsewhere cannot bring its own.
    assert Visitor(served.url).http.post("/admin/login", data=form).status_code == 403
    assert visitor.log_in(origin="https://elsewhere.example").status_code == 403
    assert visitor.log_in(**{"sec-fetch-site": "cross-site"}).status_code == 403
    assert visitor.log_in(origin=served.url).status_code == 303


def test_a_session_reads_the_api_and_changes_nothing_without_its_word(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    visitor.log_in()
    assert visitor.http.get("/api/v1/server").status_code == 200
    refused = visitor.http.post("/api/v1/nodes/node01/cordon")
    assert (refused.status_code, refused.json()["code"]) == (403, "no-csrf-token")
    assert visitor.http.delete("/api/v1/tokens/first", headers={"x-csrf-token": "guess"}).status_code == 403
    assert backend.asked == []
    done = visitor.http.post("/api/v1/nodes/node01/cordon", headers={"x-csrf-token": visitor.csrf()})
    assert done.status_code == 200
    assert backend.asked == [("cordon", "node01", True, "first")], "in the name of the token"


def test_logging_out_ends_the_session_for_whoever_has_the_cookie(visitor: Visitor, served: ServedAdmin) -> None:
    visitor.log_in()
    thief = Visitor(served.url)
    thief.http.cookies.update(visitor.http.cookies)
    assert thief.http.get("/api/v1/server").status_code == 200
    assert visitor.http.post("/admin/logout", data={"csrf": "guess"}).status_code == 403
    assert visitor.http.post("/admin/logout", data={"csrf": visitor.csrf()}).headers["location"] == "/admin/login"
    over = thief.http.get("/api/v1/server")
    assert (over.status_code, over.json()["code"]) == (401, "session-over")
    assert "over=1" in thief.http.get("/admin").headers["location"]


def test_a_revoked_token_ends_its_sessions_also_when_its_name_is_given_again(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    visitor.log_in()
    backend.tokens_known.clear()
    assert visitor.http.get("/api/v1/server").json()["code"] == "session-over"
    sessions = BrowserSessions(lambda: 0.0)
    cookie = sessions.begin("first", STARTED_AT)
    assert sessions.find(cookie, [TokenView(name="first", created_at=STARTED_AT)]) is not None
    assert sessions.find(cookie, [TokenView(name="first", created_at=STARTED_AT + 1)]) is None
    assert sessions.find(cookie, [TokenView(name="first", created_at=STARTED_AT)]) is None, "it stays ended"


def test_a_session_ends_when_nobody_uses_it_and_after_a_working_day() -> None:
    now = [0.0]
    sessions = BrowserSessions(lambda: now[0])
    tokens = [TokenView(name="a", created_at=1.0)]
    idle, busy = sessions.begin("a", 1.0), sessions.begin("a", 1.0)
    while now[0] < SESSION_S_MAX:
        assert sessions.find(busy, tokens) is not None
        now[0] += IDLE_S_MAX - 1
    assert sessions.find(idle, tokens) is None
    assert sessions.find(busy, tokens) is None
    assert len(sessions) == 0


def test_the_number_of_sessions_is_bounded() -> None:
    sessions = BrowserSessions(lambda: 0.0, sessions_max=10)
    cookies = [sessions.begin("a", 1.0) for _ in range(50)]
    assert len(sessions) == 10
    assert sessions.find(cookies[-1], [TokenView(name="a", created_at=1.0)]) is not None


@pytest.mark.parametrize(
    ("path", "onward"),
    [
        ("/admin/fabrics/x?a=1", "/admin/fabrics/x?a=1"),
        ("https://elsewhere.example", "/admin"),
        ("//elsewhere.example/admin/", "/admin"),
        ("/\\elsewhere.example", "/admin"),
        ("/administrator", "/admin"),
        ("/admin/login?next=/admin/login", "/admin"),
        ("/admin/a\r\nset-cookie: x", "/admin"),
        ("/admin/../api/v1/nodes", "/admin"),
        ("/admin/fabrics/%2E%2e/login", "/admin"),
        ("/admin/fabrics/.%2e/login", "/admin"),
        ("/admin/models/a%2F..%2Fb", "/admin/models/a%2F..%2Fb"),
        ("/admin/fabrics?x=/../y", "/admin/fabrics?x=/../y"),
        (None, "/admin"),
    ],
)
def test_after_logging_in_one_is_sent_to_our_own_pages_only(path: str | None, onward: str) -> None:
    assert safe_next(path) == onward


def test_every_page_has_headers_that_let_a_browser_do_little(visitor: Visitor) -> None:
    login = visitor.http.get("/admin/login")
    visitor.log_in()
    pages = [login, *(visitor.http.get(path) for path in ("/admin", "/admin/fabrics", "/admin/fabrics/ib-a"))]
    pages.append(visitor.http.get("/admin/nothing/here"))
    assert [page.status_code for page in pages] == [200, 200, 200, 200, 404]
    for page in pages:
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "same-origin"
        assert page.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son[a-z]+=|<style", page.text), "nothing inline"
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page.text), "nothing from elsewhere"


def test_files_are_named_by_their_content_and_kept_for_ever(visitor: Visitor) -> None:
    page = visitor.http.get("/admin/login").text
    (style,) = re.findall(r'href="(/admin/static/[^"]*\.css)"', page)
    file = visitor.http.get(style)
    assert file.headers["content-type"].startswith("text/css")
    assert "immutable" in file.headers["cache-control"]
    other = re.sub(r"static/[0-9a-f]+", "static/0123456789abcdef", style)
    assert visitor.http.get(other).status_code == 404
    assert visitor.http.get(style.replace("pages.css", "..%2frendering.py")).status_code == 404


def test_pages_answer_a_token_in_a_header_too(visitor: Visitor) -> None:
    page = visitor.http.get("/admin/fabrics", headers={"authorization": f"Bearer {TOKEN}"})
    assert page.status_code == 200
    assert "ib-a" in page.text


def test_a_form_that_says_two_things_of_one_is_refused(visitor: Visitor) -> None:
    visitor.log_in()
    csrf = visitor.csrf()
    form = {"content-type": "application/x-www-form-urlencoded"}
    twice = visitor.http.post("/admin/logout", content=f"csrf={csrf}&csrf={csrf}", headers=form)
    assert (twice.status_code, "given twice" in twice.text) == (400, True)
    assert visitor.http.get("/api/v1/server").status_code == 200


@pytest.mark.parametrize("path", ["/admin", "/admin/events", "/api/v1/server", "/metrics"])
@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:3000"},
    ],
)
def test_a_page_of_another_port_reads_nothing_with_the_cookie_that_it_is_sent(
    visitor: Visitor, path: str, headers: dict[str, str]
) -> None:
    visitor.log_in()
    # A proxy's header: programs of this host are told the metrics without a session.
    refused = visitor.http.get(path, headers={"via": "1.1 x", **headers})
    assert (refused.status_code, refused.headers["content-type"]) == (403, "application/json")
    assert refused.json()["code"] == "cross-site"


def test_a_link_on_another_page_leads_to_ours(visitor: Visitor) -> None:
    visitor.log_in()
    headers = {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}
    assert visitor.http.get("/admin", headers=headers).status_code == 200
