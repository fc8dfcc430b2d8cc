"""What holds for every route of the admin app, whoever adds one: walked, not listed."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import httpx
import pytest

from tests.ctl.scripted import TOKEN, ScriptedBackend
from tests.pages.routes import COOKIE, HOST, Around, Walk, address

# The login form has proofs of its own, and logging out without a session is nothing.
LOGIN = {"/admin/login", "/admin/logout"}
FOREIGN = [
    {"origin": "https://elsewhere.example"},
    {"origin": "null"},
    {"origin": HOST.replace("https", "http").replace("8081", "8080")},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": HOST, "sec-fetch-site": "cross-site"},
]
# What is looked up to know who asks, and told of them.
ALLOWED = {"tokens", "audit.record", "audit.wrong_token", "news.version", "news.happen"}


@pytest.fixture
def touched() -> set[str]:
    """What was asked of the backend."""
    return set()


@pytest.fixture
def walk(backend: ScriptedBackend, touched: set[str]) -> Walk:
    def told(name: str, answer: Any) -> Any:
        touched.add(name)
        return answer

    return Walk(Around(backend, told))


def refused(answer: httpx.Response) -> bool:
    return answer.status_code in (401, 403)


def test_no_change_is_made_without_the_session_s_word(
    walk: Walk, backend: ScriptedBackend, touched: set[str]
) -> None:
    changes = list(walk.routes(reads=False))
    assert len(changes) > 20, "there is something to walk"

    async def body(client: httpx.AsyncClient) -> None:
        for method, route in changes:
            for word in (None, "guess"):
                headers = {} if word is None else {"x-csrf-token": word}
                form = {"x": "y"} if word is None else {"csrf": word, "proof": word, "token": TOKEN}
                answer = await client.request(method, address(route), data=form, headers=headers)
                assert refused(answer), f"{method} {route.path}: {answer.status_code} {answer.text}"

    walk.run(body)
    assert touched <= ALLOWED
    assert backend.asked == []


@pytest.mark.parametrize("headers", FOREIGN, ids=lambda headers: " ".join(headers.values()))
def test_no_change_is_made_for_another_site_s_page_though_it_has_cookie_and_word(
    walk: Walk, backend: ScriptedBackend, touched: set[str], headers: dict[str, str]
) -> None:
    async def body(client: httpx.AsyncClient) -> None:
        for method, route in walk.routes(reads=False):
            word = walk.session.csrf
            answer = await client.request(
                method, address(route), data={"csrf": word}, headers={**headers, "x-csrf-token": word}
            )
            assert refused(answer), f"{method} {route.path}: {answer.status_code} {answer.text}"

    walk.run(body)
    assert touched <= ALLOWED
    assert backend.asked == []
    entries = [entry for entry in backend.audit.entries if entry.by == "first"]
    assert {entry.status for entry in entries} == {403}
    assert len(entries) == len(list(walk.routes(reads=False))), "each of them is in the audit log"


def test_nothing_but_the_login_answers_a_cookie_after_its_session_has_ended(
    walk: Walk, backend: ScriptedBackend, touched: set[str]
) -> None:
    async def body(client: httpx.AsyncClient) -> None:
        word = walk.session.csrf
        done = await client.post("/admin/logout", data={"csrf": word}, headers={"origin": HOST})
        assert done.headers["location"] == "/admin/login"
        touched.clear()
        for reads in (False, True):
            for method, route in walk.routes(reads=reads):
                if route.path in ("/health", "/admin/static/{version}/{name:path}", *LOGIN):
                    continue
                answer = await client.request(
                    method, address(route), headers={"x-csrf-token": word, "origin": HOST}
                )
                sent_on = answer.status_code == 303 and answer.headers["location"].startswith("/admin/login?")
                assert answer.status_code == 401 or (reads and sent_on), f"{method} {route.path}: {answer.text}"

    walk.run(body)
    assert touched <= ALLOWED
    assert backend.asked == []


def test_with_its_word_and_from_its_own_page_a_change_is_made(walk: Walk, backend: ScriptedBackend) -> None:
    async def body(client: httpx.AsyncClient) -> None:
        headers = {"x-csrf-token": walk.session.csrf, "origin": HOST, "sec-fetch-site": "same-origin"}
        answer = await client.post("/api/v1/nodes/node01/cordon", headers=headers)
        assert answer.status_code == 200, answer.text

    walk.run(body)
    assert backend.asked == [("cordon", "node01", True, "first")]


def test_every_page_of_every_status_lets_a_browser_do_little(walk: Walk) -> None:
    seen: list[int] = []

    def look(route: str, answer: httpx.Response) -> None:
        assert answer.status_code < 500, f"{route}: {answer.text}"
        for cookie in answer.headers.get_list("set-cookie"):
            parts = {part.strip() for part in cookie.split(";")}
            assert {"HttpOnly", "SameSite=strict", "Secure", "Path=/"} <= parts, f"{route}: {cookie}"
            assert cookie.startswith("__Host-")
            assert not any(part.lower().startswith("domain") for part in parts)
        assert answer.headers.get("x-content-type-options") == "nosniff" or answer.status_code == 303, route
        if not answer.headers.get("content-type", "").startswith("text/html"):
            return
        seen.append(answer.status_code)
        policy = dict(
            each.strip().partition(" ")[::2] for each in answer.headers["content-security-policy"].split(";")
        )
        assert (policy["default-src"], policy["script-src"], policy["style-src"]) == (
            "'none'",
            "'self'",
            "'self'",
        )
        assert (policy["frame-ancestors"], policy["base-uri"]) == ("'none'", "'none'")
        assert (policy["form-action"], policy["connect-src"]) == ("'self'", "'self'")
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son[a-z]+=|<style", answer.text), route
        assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", answer.text), route

    async def body(client: httpx.AsyncClient) -> None:
        for route in walk.pages():
            for query in ("", "?nonsense=1", "?before=x", "?said=x&said=y"):
                look(route.path, await client.get(address(route) + query))
        for method, route in walk.routes(reads=False):
            if route.path.startswith("/admin"):
                look(route.path, await client.request(method, address(route)))
                look(route.path, await client.request(method, address(route), data={"x": "y"}))

    walk.run(body)
    assert {200, 400, 403, 404} <= set(seen), "pages, and refusals of every kind"
    walk.run(body, session=False)


def test_no_secret_stands_in_any_address(walk: Walk) -> None:
    secrets = (walk.cookie, walk.session.csrf, TOKEN)

    async def body(client: httpx.AsyncClient) -> None:
        told: list[str] = []
        for route in walk.pages():
            answer = await client.get(address(route))
            told += [answer.headers.get("location", "")]
            if "html" in answer.headers.get("content-type", ""):
                told += re.findall(r"(?:href|src|action|data-[a-z]+)=\"([^\"]*)\"", answer.text)
        client.headers.pop("cookie")
        form = (await client.get("/admin/login")).text
        fields = {name: _field(form, name) for name in ("proof", "next")}
        answer = await client.post("/admin/login", data={**fields, "token": TOKEN})
        assert answer.status_code == 303
        told += [answer.headers["location"]]
        made = [cookie for cookie in client.cookies.jar if cookie.name == COOKIE]
        assert len(made) == 1
        for secret in (*secrets, made[0].value, fields["proof"]):
            assert secret
            assert not [address for address in told if secret in unescape(address)]
        # Nor does one that is put there log anybody in.
        client.cookies.clear()
        for tried in (f"?token={TOKEN}", f"?access_token={TOKEN}", f"?csrf={walk.session.csrf}"):
            assert (await client.get(f"/admin{tried}")).status_code == 303
            assert (await client.get(f"/api/v1/nodes{tried}")).status_code == 401
            assert (await client.get(f"/admin/login{tried}")).status_code == 400

    walk.run(body)


def test_the_address_of_a_page_may_end_with_a_slash(walk: Walk) -> None:
    async def body(client: httpx.AsyncClient) -> None:
        for page in ("/admin", "/admin/models", "/admin/nodes", "/admin/history"):
            answer = await client.get(f"{page}/?said=x")
            assert (answer.status_code, answer.headers["location"]) == (303, f"{page}?said=x")
        for other in ("/admin/nothing/", "/admin//nodes", "//admin/"):
            assert (await client.get(f"{HOST}{other}")).status_code == 404, other

    walk.run(body)


def _field(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found
    return unescape(found[1])
