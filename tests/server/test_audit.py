"""The audit log of a real control plane: every change by the admin API and its pages, and how it ended."""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.server.admin.app import create_admin_app
from llmgw.server.admin.auth import FAILURES_BURST_MAX, Attempts
from llmgw.server.audit.book import AuditBook
from llmgw.server.audit.wishes import wish_of
from llmgw.server.audit.wrong_tokens import ADDRESSES_MAX, OTHERS, WINDOW_S, WRITE_EVERY_S
from llmgw.server.store.store import Store
from tests.server.test_a_store_that_cannot_write import put_away, put_back
from tests.server.test_catalog_owner import NOW, TOKEN, Plane, Test, model, plane
from tests.store.running import on_a_loop

Run = Callable[[Test], None]


def told(entry: dict[str, Any]) -> tuple[str, str, str, int]:
    """(route, subject, summary, status) of an entry."""
    return entry["route"], entry["subject"], entry["summary"], entry["status"]


def test_a_change_is_kept_with_who_asked_from_where_for_what_and_how_it_ended(with_plane: Run) -> None:
    async def body(made: Plane) -> None:
        await made.post("scale", model="a", replicas=6)
        (entry,) = await made.get("audit")
        assert entry == {
            "id": 1, "at": NOW, "by": "ops", "address": "127.0.0.1", "method": "POST", "route": "/api/v1/scale",
            "subject": "a", "summary": "replicas 6", "status": 200,
            "message": "a/default: 5 → 6 replicas (catalog revision 2)", "count": 1, "last_at": None,
        }  # fmt: skip

    with_plane(body)


def test_what_is_refused_is_kept_with_the_sentence_and_what_only_asks_is_not(with_plane: Run) -> None:
    async def body(made: Plane) -> None:
        await made.post("scale", model="nothing", replicas=6)
        await made.post("nodes/n7/drain", force=True)
        await made.post("nodes/N1/drain", force=True)
        await made.delete("nodes/n9?force=1")
        await made.post("no/such/route")
        await made.post("catalog/plan", models=[model()])
        await made.refused(await made.post("catalog/plan", revision=99), 404, "unknown_revision")
        for path in ("nodes", "audit", "history", "nothing"):
            await made.get(path)
        found = [*reversed(await made.get("audit"))]
        assert [told(entry) for entry in found] == [
            ("/api/v1/scale", "nothing", "replicas 6", 404),
            ("/api/v1/nodes/{node}/drain", "n7", "force yes", 404),
            ("/api/v1/nodes/{node}/drain", "N1", "", 400),
            ("/api/v1/nodes/{node}", "n9", "force 1", 404),
            ("/api/v1/no/such/route", "", "", 404),
        ]
        assert "there is no model 'nothing'" in found[0]["message"]
        assert all(entry["by"] == "ops" and entry["message"] for entry in found)

    with_plane(body)


def test_no_secret_that_was_made_sent_or_mistaken_for_a_name_is_kept(with_plane: Run, tmp_path: Path) -> None:
    async def body(made: Plane) -> None:
        key = (await made.post("keys", name="alice", tokens_per_minute=5)).json()["key"]
        token = (await made.post("tokens", name="bob")).json()["token"]
        await made.delete(f"keys/{key}")
        await made.delete(f"tokens/{token}")
        secret = "hf_NobodyShallReadThis"
        await made.apply(model(), model("b", 0, env={"HF_TOKEN": secret}), note=f"with token={secret}")
        await made.post("nodes/n1/engine-check", engine="vllm", args=["--api-key", secret])
        await made.delete("keys/alice")
        entries = [*reversed(await made.get("audit"))]
        assert [told(entry)[1:3] for entry in entries] == [
            ("alice", "tokens_per_minute 5"),
            ("bob", ""),
            (f"{key[:16]}-[hidden]", ""),
            ("[hidden]", ""),
            ("catalog", "base 1; note with token=[hidden]; models a, b"),
            ("n1", "engine vllm"),
            ("alice", ""),
        ]
        assert secret not in repr(entries)
        on_disk = (tmp_path / "state" / "llmgw.db-wal").read_bytes().decode("latin-1")
        for kept in (repr(entries), on_disk):
            assert key not in kept
            assert token not in kept

    with_plane(body)


def test_entries_are_asked_for_by_who_what_and_when(with_plane: Run) -> None:
    async def body(made: Plane) -> None:
        for count in (6, 7, 8):
            await made.post("scale", model="a", profile="default", replicas=count)
        await made.post("nodes/n1/cordon")
        assert [entry["id"] for entry in await made.get("audit?limit=2")] == [4, 3]
        assert [entry["id"] for entry in await made.get("audit?limit=2&before=3")] == [2, 1]
        assert [entry["id"] for entry in await made.get("audit?subject=a/default&before=3")] == [2, 1]
        assert await made.get("audit?by=nobody") == []
        assert len(await made.get(f"audit?by=ops&from={NOW:.0f}&to=2100-01-01")) == 4
        assert await made.get("audit?to=2020-01-01T00:00") == []
        for query, words in [
            ("from=yesterday", "from must be a time like"),
            ("from=2026-01-02&to=2026-01-01", "from must be before to"),
            ("before=0", "before must be"),
            ("limit=1001", "limit must be"),
            ("by=a%00", "printable"),
            ("who=x", "knows no parameter 'who'"),
        ]:
            assert words in (await made.get(f"audit?{query}"))["message"]

    with_plane(body)


def test_a_login_a_logout_and_what_a_page_asks_for_are_kept_in_the_token_s_name(with_plane: Run) -> None:
    async def body(made: Plane) -> None:
        app = create_admin_app(made.backend, secure=True)
        transport = httpx.ASGITransport(app, client=("10.0.0.9", 1))
        async with httpx.AsyncClient(transport=transport, base_url="https://x") as browser:
            form = (await browser.get("/admin/login")).text
            fields = {name: field(form, name) for name in ("proof", "next")}
            assert (await browser.post("/admin/login", data={**fields, "token": TOKEN})).status_code == 303
            word = field((await browser.get("/admin")).text, "csrf")
            await browser.post("/api/v1/nodes/n1/cordon")
            await browser.post("/api/v1/nodes/n1/cordon", headers={"x-csrf-token": word, "origin": "https://y"})
            await browser.post("/admin/logout", data={"csrf": "guess"})
            await browser.post("/admin/logout", data={"csrf": word})
        entries = [*reversed(await made.get("audit"))]
        assert [(entry["route"], entry["status"]) for entry in entries] == [
            ("/admin/login", 303),
            ("/api/v1/nodes/{node}/cordon", 403),
            ("/api/v1/nodes/{node}/cordon", 403),
            ("/admin/logout", 403),
            ("/admin/logout", 303),
        ]
        assert {(entry["by"], entry["address"]) for entry in entries} == {("ops", "10.0.0.9")}
        assert (entries[0]["message"], entries[-1]["message"]) == ("logged in", "logged out")
        assert "x-csrf-token" in entries[1]["message"]
        assert "not sent by a page of this server" in entries[2]["message"]
        assert entries[1]["subject"] == "n1"

    with_plane(body)


def field(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found, page
    return html.unescape(found[1])


def test_a_change_is_in_the_log_before_its_answer_is_and_also_when_nobody_waits_for_it(with_plane: Run) -> None:
    async def body(made: Plane) -> None:
        app = create_admin_app(made.backend, secure=True)
        waiting = asyncio.Event()
        kept_then: list[int] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b'{"model": "a", "replicas": 6}', "more_body": False}

        async def never(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                kept_then.append(len(await made.backend.audit.view(**EVERYTHING)))
                waiting.set()
                await asyncio.Event().wait()

        scope = {
            "type": "http", "method": "POST", "path": "/api/v1/scale", "query_string": b"", "root_path": "",
            "headers": [(b"authorization", f"Bearer {TOKEN}".encode())], "client": ("10.0.0.9", 1),
            "scheme": "https", "server": ("x", 443), "http_version": "1.1",
        }  # fmt: skip
        task = asyncio.create_task(app(scope, receive, never))
        await waiting.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert kept_then == [1]
        assert [told(entry)[3] for entry in await made.get("audit")] == [200]

        begun = asyncio.Event()

        async def silent() -> dict[str, Any]:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        task = asyncio.create_task(app({**scope, "state": {}}, silent, never))
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        (newest, _) = await made.get("audit")
        assert (newest["status"], newest["message"]) == (0, "the connection ended before there was an answer")

    with_plane(body)


EVERYTHING: dict[str, Any] = {
    "by": None, "subject": None, "from_s": None, "to_s": None, "before": None, "limit": 100,
}  # fmt: skip


def test_a_defect_is_kept_as_one(with_plane: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(made: Plane) -> None:
        async def broken(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(made.backend, "cordon", broken)
        assert (await made.post("nodes/n1/cordon")).status_code == 500
        (entry,) = await made.get("audit")
        assert entry["status"] == 500
        assert "a defect of it" in entry["message"]

    with_plane(body)


def test_a_release_s_file_passes_through_and_is_not_held_in_memory(with_plane: Run) -> None:
    async def body(made: Plane) -> None:
        refused = await made.put(f"releases/{'0' * 64}", b"x" * 6_000_000)
        (entry,) = await made.get("audit")
        assert entry["status"] == refused.status_code
        assert entry["subject"] == "0" * 64

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(6):
                yield b'{"replicas": 1,' + b" " * 1_000_000

        await made._client.post("/api/v1/scale", content=chunks())
        newest = (await made.get("audit"))[0]
        assert (newest["status"], newest["summary"]) == (413, "")

    with_plane(body)


def test_what_the_disk_does_not_take_is_told_waits_and_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgw.server.backend.CHANGE_WAIT_S", 0.3)

    async def body() -> None:
        async with plane(tmp_path / "state") as made:
            await made.post("keys", name="alice")
            await made.store.flush()
            put_away(tmp_path)
            assert (await made.post("nodes/n1/cordon")).status_code == 503
            began = time.monotonic()
            told = await made.get("audit")
            assert time.monotonic() - began < 3.0, "a disk that takes nothing was waited for"
            assert [entry["subject"] for entry in told] == ["n1", "alice"]
            assert "store-write-failing" in [finding.check for finding in made.store.findings()]
            put_back(tmp_path)
            await made.store.flush()
            assert await made.get("audit") == told

    asyncio.run(asyncio.wait_for(body(), 20.0))


@on_a_loop
async def test_wrong_tokens_are_counted_by_address_and_fill_no_disk(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    clock = {"now": NOW}
    book = AuditBook(store, lambda: clock["now"])
    for second in range(int(WRITE_EVERY_S)):
        clock["now"] = NOW + second
        for number in range(1_000):
            book.wrong_token("10.0.0.1", "POST", "/admin/login")
            book.wrong_token(f"10.0.1.{number % 100}", "GET", "/api/v1/nodes")
    entries = await book.view(**EVERYTHING)
    assert len(entries) == ADDRESSES_MAX + 1
    counts = {entry.address: entry.count for entry in entries}
    assert counts["10.0.0.1"] == 1_000 * WRITE_EVERY_S
    assert sum(counts.values()) == 2_000 * WRITE_EVERY_S
    assert counts[OTHERS] > counts["10.0.1.3"]
    first = entries[-1]
    assert (first.by, first.route, first.status, first.at) == ("", "/admin/login", 401, NOW)
    assert first.last_at == clock["now"]
    # Another window, another entry.
    clock["now"] += WINDOW_S
    book.wrong_token("10.0.0.1", "GET", "/api/v1/nodes")
    assert [entry.count for entry in await book.view(**EVERYTHING) if entry.address == "10.0.0.1"] == [1, 5_000]
    await store.close()


def test_wrong_tokens_of_headers_and_of_the_form_are_in_the_log_also_those_not_looked_at(with_plane: Run) -> None:
    async def body(made: Plane) -> None:
        app = create_admin_app(made.backend, secure=True, attempts=Attempts(lambda: 0.0))
        transport = httpx.ASGITransport(app, client=("2001:db8::7", 1))
        async with httpx.AsyncClient(transport=transport, base_url="https://x") as guesser:
            form = (await guesser.get("/admin/login")).text
            fields = {name: field(form, name) for name in ("proof", "next")}
            answers = []
            for number in range(FAILURES_BURST_MAX + 5):
                answer = await guesser.post("/admin/login", data={**fields, "token": f"guess-{number}"})
                fields["proof"] = field(answer.text, "proof")
                answers.append(answer.status_code)
            assert answers == [401] * FAILURES_BURST_MAX + [429] * 5
            headers = {"authorization": "Bearer guess"}
            assert (await guesser.get("/api/v1/nodes", headers=headers)).status_code == 429
        (entry,) = await made.get("audit")
        assert (entry["by"], entry["address"], entry["count"]) == ("", "2001:db8::/64", FAILURES_BURST_MAX + 6)
        assert "guess" not in repr(entry)

    with_plane(body)


def test_a_form_s_fields_are_told_as_a_body_s_are_and_no_others() -> None:
    form = b"csrf=secret&message=secret&replicas=3&model=org%2Fa&profile=p&models=a&models=b&force=&note=%C3%BC"
    assert wish_of("/admin/scale", {}, b"", form) == ("org/a/p", "note ü; replicas 3; models a, b")
    assert wish_of("/admin/nodes/{node}", {"node": "n1"}, b"force=1&said=x", b"") == ("n1", "force 1")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'"x"', b"\xff", b"[" * 5_000, b'{"model": {"a": 1}, "files": 3}']
)
def test_a_body_that_cannot_be_read_tells_nothing_and_fails_nothing(body: bytes) -> None:
    subject, summary = wish_of("/r", {}, b"%ff=%ff&;&" + b"a=1&" * 500, body)
    assert subject == ""
    assert "secret" not in summary


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain", ""])
def test_a_change_is_told_as_it_was_made_whatever_its_content_type_claims(with_plane: Run, kind: str) -> None:
    async def body(made: Plane) -> None:
        asked = b'{"model": "m", "replicas": 0, "profile": "default"}'
        answer = await made.raw("scale", asked, kind)
        (entry,) = await made.get("audit?limit=1")
        assert (entry["status"], entry["route"]) == (answer.status_code, "/api/v1/scale")
        assert (entry["subject"], entry["summary"]) == ("m/default", "replicas 0")

    with_plane(body)
