"""/admin/audit: what was asked for, by whom, filtered by a form and paged by key, without a script."""

from __future__ import annotations

import re

from llmgw.messages.audit_views import AuditEntry
from tests.ctl.scripted import STARTED_AT, TOKEN, ScriptedBackend
from tests.pages.visitor import Visitor


def rows(page: str) -> list[str]:
    """The texts of the table's rows, newest first."""
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    found = re.findall(r"<tr id=\"entry-\d+\">(.*?)</tr>", body, re.S)
    return [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in found]


def test_a_change_is_shown_with_who_asked_from_where_and_how_it_ended(visitor: Visitor) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    visitor.http.post("/api/v1/nodes/node01/drain", json={"force": True}, headers=headers)
    visitor.http.post("/api/v1/nodes/node99/cordon", headers=headers)
    visitor.http.post("/api/v1/nodes/node02/cordon")
    page = visitor.http.get("/admin/audit").text
    forged, refused, drained, login = rows(page)
    for part in ("first", "127.0.0.1", "POST /api/v1/nodes/{node}/drain", "node01", "force yes", "● done 200"):
        assert part in drained
    assert "✕ refused 404 there is no node" in refused
    assert "✕ refused 403" in forged, "also what another site's page would have sent"
    assert "/admin/login" in login
    assert "logged in" in login
    assert '<a href="/api/v1/audit">' in page
    assert 'aria-current="page">Audit</a>' in page


def test_entries_are_filtered_by_a_form_and_paged_by_key(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.audit.entries = [
        AuditEntry(
            id=number,
            at=STARTED_AT + number,
            by=f"u{number % 2}",
            method="POST",
            route="/r",
            subject=f"node{number:04}",
            status=200,
        )
        for number in range(1, 251)
    ]
    seen: list[str] = []
    path: str | None = "/admin/audit?by=u1&from=2023-11-14"
    while path is not None:
        page = visitor.http.get(path).text
        seen += re.findall(r"node\d{4}", "".join(rows(page)))
        assert 'name="by" list="names" value="u1"' in page
        assert 'name="from" type="date" value="2023-11-14"' in page
        older = re.search(r'<a href="([^"]*)" rel="next">', page)
        path = older[1].replace("&amp;", "&") if older else None
    assert seen == [f"node{number:04}" for number in range(249, 0, -2)]
    assert 'href="/api/v1/audit?by=u1&amp;from=2023-11-14&amp;before=51"' in page, "the JSON of this very page"
    assert "There is no such entry." in visitor.http.get("/admin/audit?subject=nothing").text
    # A form sends its empty fields too.
    assert len(rows(visitor.http.get("/admin/audit?by=&subject=node0007&from=&to=").text)) == 1


def test_what_cannot_be_meant_is_said_on_a_page(visitor: Visitor) -> None:
    for query, words in [
        ("from=x", "From must be a time"),
        ("before=-1", "Before must be a whole number"),
        ("by=a%0Ab", "By must be"),
        ("who=x", "knows no parameter"),
        ("from=2026-01-02&amp;to=2026-01-01".replace("&amp;", "&"), "From must be before to"),
    ]:
        answer = visitor.http.get(f"/admin/audit?{query}")
        assert answer.status_code == 400
        assert words in answer.text


def test_wrong_tokens_and_what_got_no_answer_are_told_as_that(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.audit.entries += [
        AuditEntry(
            id=8, at=STARTED_AT, address="10.0.0.9", status=401, message="m", count=12, last_at=STARTED_AT
        ),
        AuditEntry(id=9, at=STARTED_AT, by="SIGHUP", method="SIGHUP", route="server.yaml", status=0),
    ]
    signal, guesses, _ = rows(visitor.http.get("/admin/audit").text)
    assert "nobody known" in guesses
    assert "12 times" in guesses
    assert "the server’s host" in signal
    assert "▲ no answer" in signal
