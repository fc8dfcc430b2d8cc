"""The history as a page: narrowed by a form, paged by key, and quick however long it is."""

from __future__ import annotations

import html
import re
import sqlite3
from pathlib import Path

import pytest

from llmgw.messages.admin import HistoryEntry
from llmgw.server.pages.history_pages import ENTRIES_SHOWN
from llmgw.server.store import reads
from llmgw.server.store.engine import migrating_engine
from llmgw.server.store.migrate import prepare
from tests.ctl.scripted import STARTED_AT, ScriptedBackend
from tests.pages.models import BREAKOUT, SCRIPT, entries, keep_history
from tests.pages.visitor import Visitor

ROWS = 5_000


def older(page: str) -> str | None:
    """The address behind the link to what is older."""
    found = re.search(r'href="([^"]*)" rel="next"', page)
    return html.unescape(found[1]) if found else None


def shown(page: str) -> list[int]:
    return [int(each) for each in re.findall(r'id="entry-(\d+)"', page)]


def test_the_whole_history_is_paged_through_without_a_gap(visitor: Visitor, backend: ScriptedBackend) -> None:
    keep_history(backend, entries(2 * ENTRIES_SHOWN + 7))
    seen: list[list[int]] = []
    path: str | None = "/admin/history"
    while path is not None:
        page = visitor.http.get(path).text
        seen.append(shown(page))
        path = older(page)
    assert [len(each) for each in seen] == [ENTRIES_SHOWN, ENTRIES_SHOWN, 7]
    assert [number for each in seen for number in each] == list(range(2 * ENTRIES_SHOWN + 7, 0, -1))
    assert 'href="/admin/history">Newest' in page


def test_a_history_that_just_fits_has_nothing_older(visitor: Visitor, backend: ScriptedBackend) -> None:
    keep_history(backend, entries(ENTRIES_SHOWN))
    assert older(visitor.http.get("/admin/history").text) is None


def test_filters_are_a_plain_form_and_stay_while_one_turns_pages(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    kept = entries(ENTRIES_SHOWN + 5, subject="node01", kind="node", model="org/chat-large")
    keep_history(backend, [*entries(300)[:100], *kept])
    # What a browser sends for a form whose other fields are empty.
    page = visitor.http.get("/admin/history?kind=node&subject=node01&model=chat").text
    assert ("history", "node01", "node", "org/chat-large", None, ENTRIES_SHOWN + 1) in backend.asked
    assert "<option selected>node</option>" in page
    assert 'name="subject" maxlength="264" value="node01"' in page
    onward = older(page)
    assert onward == "/admin/history?kind=node&subject=node01&model=chat&before=6"
    assert shown(visitor.http.get(onward).text) == [5, 4, 3, 2, 1]
    assert 'href="/api/v1/history?kind=node&amp;subject=node01&amp;model=chat"' in page
    assert visitor.http.get("/admin/history?kind=&subject=&model=").status_code == 200
    assert ("history", None, None, None, None, ENTRIES_SHOWN + 1) in backend.asked


def test_each_entry_leads_to_what_it_is_about(visitor: Visitor, backend: ScriptedBackend) -> None:
    kept = [
        HistoryEntry(id=6, at=STARTED_AT, kind="node", subject="node01", event="ready", nodes=["node01"]),
        HistoryEntry(
            id=5, at=STARTED_AT, kind="replica", subject="r-1", event="ready", model="org/m", nodes=["n2"]
        ),
        HistoryEntry(id=4, at=STARTED_AT, kind="operator", subject="node03", event="drained", nodes=["node03"]),
        HistoryEntry(id=3, at=STARTED_AT, kind="operator", subject="r-2", event="restart asked for"),
        HistoryEntry(
            id=2, at=STARTED_AT, kind="catalog", subject="org/m/p", event="rollout stopped", model="org/m"
        ),
        HistoryEntry(id=1, at=STARTED_AT, kind="fabric", subject="ib a", event="gone", nodes=["n4"]),
    ]
    keep_history(backend, kept)
    page = visitor.http.get("/admin/history").text
    subjects = dict(re.findall(r'<th scope="row"><a href="([^"]*)">([^<]*)</a>', page))
    assert {text: address for address, text in subjects.items()} == {
        "node01": "/admin/nodes/node01",
        "r-1": "/admin/replicas/r-1",
        "node03": "/admin/nodes/node03",
        "r-2": "/admin/replicas/r-2",
        "org/m/p": "/admin/models/org/m",
        "ib a": "/admin/fabrics/ib%20a",
    }
    for address in ("/admin/nodes/n2", "/admin/nodes/n4", "/admin/models/org/m"):
        assert f'href="{address}"' in page


@pytest.mark.parametrize("query", ["?kind=weather", "?before=x", "?before=0", "?model=%00", "?limit=5"])
def test_what_cannot_be_asked_for_is_refused_in_words(
    visitor: Visitor, backend: ScriptedBackend, query: str
) -> None:
    answer = visitor.http.get("/admin/history" + query)
    assert answer.status_code == 400
    assert "That did not work" in answer.text
    assert backend.asked == []


def test_entries_that_mean_harm_are_text(visitor: Visitor, backend: ScriptedBackend) -> None:
    keep_history(
        backend, entries(1, subject=SCRIPT, event=BREAKOUT, reason=SCRIPT, model=BREAKOUT, nodes=[SCRIPT])
    )
    page = visitor.http.get(f"/admin/history?subject={SCRIPT}").text
    assert shown(page) == [1]
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def fill(path: Path) -> None:
    """Replicas of one model, and here and there a node and an operator."""
    prepare(path, 1.0)
    with sqlite3.connect(path) as connection:
        connection.executemany(
            "INSERT INTO history (at, kind, subject, event, reason, model, nodes)"
            " VALUES (?, ?, ?, ?, '', ?, '[]')",
            (
                (number, "node", "node01", "ready", None)
                if number % 10 == 0
                else (number, "operator" if number == 55 else "replica", f"r{number % 400}", "ready", "org/m")
                for number in range(1, ROWS + 1)
            ),
        )


def test_pages_of_a_long_history_are_found_by_an_index_wherever_one_is_in_it(
    visitor: Visitor, backend: ScriptedBackend, tmp_path: Path
) -> None:
    path = tmp_path / "llmgw.db"
    fill(path)
    plans: list[str] = []

    async def history(**asked: object) -> list[HistoryEntry]:
        with migrating_engine(path).connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            texts: list[str] = []
            driver.set_trace_callback(texts.append)
            found = reads.history(connection, **asked)  # type: ignore[arg-type]
            driver.set_trace_callback(None)
            question = next(text for text in texts if text.startswith("SELECT"))
            plans.append(" ".join(row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {question}")))
        return found

    backend.history = history  # type: ignore[assignment, method-assign]
    expected = {
        "before=4000": ("INTEGER PRIMARY KEY (rowid<?)", list(range(3999, 3899, -1))),
        "before=51": ("INTEGER PRIMARY KEY (rowid<?)", list(range(50, 0, -1))),
        "kind=node&before=4001": ("ix_history_kind_id", list(range(4000, 3000, -10))),
        "kind=operator&model=org/m": ("ix_history_model_kind_id", [55]),
        "kind=node&model=org/m": ("ix_history_model_kind_id", []),
        "subject=r77&before=900": ("ix_history_subject_id", [877, 477, 77]),
        "subject=r77&kind=replica&model=org/m&before=500": ("ix_history_subject_id", [477, 77]),
    }
    for query, (index, ids) in expected.items():
        page = visitor.http.get(f"/admin/history?{query}")
        assert shown(page.text) == ids, query
        assert index in plans[-1], f"{query}: {plans[-1]}"
        assert "SCAN" not in plans[-1]
        assert "TEMP B-TREE" not in plans[-1]
