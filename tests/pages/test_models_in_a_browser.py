"""Models and logs in a real Chromium: kept up without reloading, followed, and readable at any width."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from llmgw.messages.admin import LogView
from llmgw.messages.agent import Progress
from llmgw.server.admin.backend import AdminError
from tests.ctl.scripted import ScriptedBackend, ServedAdmin, replica
from tests.pages.chromium import chromium, chromium_path, keep_screenshot, log_in, until
from tests.pages.models import (
    BREAKOUT,
    ESCAPED,
    ESCAPES,
    SCRIPT,
    busy_replica,
    entries,
    failed_replica,
    keep_history,
    requests,
    shard,
)

pytest.importorskip("playwright", reason="pip install playwright drives the browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium_path() is None, reason="no Chromium: apt-get install chromium"),
]

SMALL = "/admin/models/chat-small"
LARGE = "/admin/models/org/chat-large"
LOGS = "/admin/replicas/chat-large-1a2b/logs"


class Growing:
    """A log that a test writes to, asked for as the real one is: by offset, in pieces."""

    def __init__(self) -> None:
        self.text = ""
        self.over = False
        self.silent = False
        self.asked = 0

    async def logs(self, replica_id: str, rank: int, stream: str, offset: int | None, lines: int) -> LogView:
        self.asked += 1
        if self.silent:
            raise AdminError(504, "no-answer", "node01 did not answer within 10 s")
        text = self.text
        start = len(text) - sum(map(len, text.splitlines(True)[-lines:])) if offset is None else offset
        piece = text[start : start + 262_144]
        return LogView(
            replica_id=replica_id, rank=rank, node="node01", offset=start, next_offset=start + len(piece),
            text=piece, shard_over=self.over, streams=["engine", "ray-head"],
        )  # fmt: skip


class Seen:
    """Pages of one browser that has logged in, and everything that they complained of or asked for."""

    def __init__(self, browser: Any, served: ServedAdmin, **context: Any) -> None:
        self.served = served
        self.context = browser.new_context(**{"viewport": {"width": 1600, "height": 950}, **context})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        self.page.on("request", lambda asked: self.hosts.add(urlsplit(asked.url).netloc))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        log_in(self.page, served.url, "/admin/models")

    def open(self, path: str) -> Any:
        self.page.goto(self.served.url + path)
        return self.page

    def ask(self, script: str) -> Any:
        return self.page.evaluate(f"() => {script}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def kept() -> Iterator[tuple[ScriptedBackend, ServedAdmin]]:
    backend = ScriptedBackend()
    requests(backend)
    keep_history(backend, entries(120, model="org/chat-large", reason="a one-token request was answered"))
    served = ServedAdmin(backend)
    yield backend, served
    served.stop()


@pytest.fixture(scope="module")
def shared(browser: Any, kept: tuple[ScriptedBackend, ServedAdmin]) -> Iterator[Seen]:
    seen = Seen(browser, kept[1])
    yield seen
    seen.context.close()


@pytest.fixture
def seen(shared: Seen) -> Iterator[Seen]:
    shared.complaints.clear()
    yield shared
    assert shared.complaints == []
    assert shared.hosts == {urlsplit(shared.served.url).netloc}, "nothing is asked of another host"


@pytest.fixture
def backend(kept: tuple[ScriptedBackend, ServedAdmin], monkeypatch: pytest.MonkeyPatch) -> ScriptedBackend:
    """Each test finds the same replicas, and an hour of requests."""
    backend = kept[0]
    monkeypatch.setattr(backend, "replicas_known", [busy_replica(), *backend.replicas_known[1:]])
    return backend


@pytest.fixture
def growing(backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch) -> Growing:
    growing = Growing()
    monkeypatch.setattr(backend, "logs", growing.logs)
    return growing


def happen(seen: Seen, backend: ScriptedBackend) -> None:
    """Tell open pages that there is news."""
    seen.served._loop.call_soon_threadsafe(backend.news.happen)


def test_a_replica_goes_from_starting_to_ready_without_reloading(seen: Seen, backend: ScriptedBackend) -> None:
    page = seen.open(SMALL)
    page.evaluate("() => { window.same = true; }")
    card = page.locator("#replica-chat-small-3c4d")
    assert "◐ starting" in card.inner_text()
    assert card.locator("progress").get_attribute("value") == str(5 * 2**30)
    page.fill("#replicas-1", "7")

    def become(state: str, phase: str, progress: Progress | None) -> None:
        shards = [shard("chat-small-3c4d", 0, node="node01", phase=phase, progress=progress)]
        backend.replicas_known = [
            replica("chat-small-3c4d", model="chat-small", nodes=["node01"], state=state, shards=shards)
        ]
        happen(seen, backend)

    become("starting", "fetching", Progress(what="weights", done_bytes=9 * 2**30, total_bytes=10 * 2**30))
    until(lambda: card.locator("progress").get_attribute("value") == str(9 * 2**30), "the bar grows")
    become("ready", "ready", None)
    until(lambda: "● ready" in card.locator("header").inner_text(), "the replica is ready")
    assert card.locator("progress").count() == 0
    assert seen.ask("window.same"), "it was not loaded again"
    assert page.input_value("#replicas-1") == "7", "what was typed stays"


def test_a_log_is_followed_until_its_shard_is_over(seen: Seen, growing: Growing, tmp_path: Path) -> None:
    growing.text = "first\nsecond\nunfini"
    page = seen.open(f"{LOGS}?lines=2")
    log = page.locator("#log")
    until(lambda: seen.ask("document.getElementById('log-said').textContent") == "Following.", "it follows")
    assert log.inner_text().split("\n") == ["second", "unfini"]
    growing.text += f"shed\n{SCRIPT}{BREAKOUT}\n{ESCAPES}\n"
    until(lambda: ESCAPED in log.inner_text(), "what is written is shown")
    assert log.inner_text().split("\n") == ["second", "unfinished", SCRIPT + BREAKOUT, ESCAPED]
    assert log.locator("script, img").count() == 0
    keep_screenshot(page, tmp_path, "log")
    growing.over = True
    until(lambda: "this is all that it said" in page.locator("#log-said").inner_text(), "its end is said")
    asked = growing.asked
    page.wait_for_timeout(1200)
    assert growing.asked == asked, "nobody asks on"
    assert page.locator("#follow").is_hidden()


def test_following_pauses_while_one_reads_further_up_and_the_page_stays_small(
    seen: Seen, growing: Growing
) -> None:
    growing.text = "".join(f"line {number} {'x' * 40}\n" for number in range(7000))
    page = seen.open(f"{LOGS}?lines=7000")
    until(lambda: seen.ask("document.querySelector('#log').textContent.includes('line 6999 ')"), "it catches up")
    until(lambda: seen.ask("document.querySelector('#log').childElementCount") == 5000, "the oldest go")
    at_end = "(log => log.scrollHeight - log.scrollTop - log.clientHeight < 3)(document.querySelector('#log'))"
    until(lambda: seen.ask(at_end), "the end is in view")
    page.locator("#log").evaluate("log => { log.scrollTop = 100; }")
    until(lambda: page.locator("#follow").get_attribute("aria-pressed") == "false", "it pauses")
    assert "Paused" in page.locator("#log-said").inner_text()
    growing.text += "later\n"
    asked = growing.asked
    page.wait_for_timeout(600)
    assert growing.asked <= asked + 1
    assert not seen.ask("document.querySelector('#log').textContent.includes('later')")
    page.click("#follow")
    until(
        lambda: seen.ask("document.querySelector('#log').lastElementChild.textContent") == "later", "it goes on"
    )
    until(lambda: seen.ask(at_end), "the end is in view again")


def test_a_node_that_does_not_answer_is_said_and_asked_again(seen: Seen, growing: Growing) -> None:
    growing.text = "before\n"
    page = seen.open(LOGS)
    until(lambda: page.locator("#log-said").inner_text() == "Following.", "it follows")
    growing.silent = True
    until(
        lambda: "Node01 did not answer within 10 s; trying again." in page.locator("#log-said").inner_text(),
        "said",
    )
    assert page.locator("#log").inner_text() == "before", "what was read stays"
    growing.text += "after\n"
    growing.silent = False
    until(lambda: page.locator("#log").inner_text() == "before\nafter", "it goes on")
    # The browser itself writes down each answer that is an error.
    seen.complaints[:] = [each for each in seen.complaints if "504" not in each]


def test_a_very_long_line_wraps(seen: Seen, growing: Growing) -> None:
    growing.text = "y" * 30_000 + "\n"
    page = seen.open(LOGS)
    until(lambda: page.locator("#log-said").inner_text() == "Following.", "it follows")
    assert "… and 10000 characters more" in page.locator("#log").inner_text()
    assert seen.ask("(log => log.scrollWidth <= log.clientWidth)(document.querySelector('#log'))")


def test_a_scale_that_must_be_confirmed_is_confirmed_with_a_second_button(
    seen: Seen, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "scale_refused", "it would stop 3 of 8 ready replicas, more than 20%")
    page = seen.open(LARGE)
    page.fill("#replicas-1", "0")
    page.click("#profile-1 button:text-is('Scale')")
    page.wait_for_selector(".scale .said")
    assert page.input_value("#replicas-1") == "0"
    happen(seen, backend)
    page.wait_for_timeout(300)
    page.click("button:text-is('Scale to 0 all the same')")
    page.wait_for_selector(".done")
    assert ("scale", "org/chat-large", "default", 0, "first", "confirmed") in backend.asked
    seen.complaints[:] = [each for each in seen.complaints if "409" not in each]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_telephone_and_a_wide_screen(
    seen: Seen, backend: ScriptedBackend, growing: Growing, tmp_path: Path, scheme: str
) -> None:
    growing.text = f"INFO loading {'weights ' * 80}\nWARNING \x1b[33mslow\x1b[0m\n" * 20
    growing.over = True
    backend.replicas_known = [
        busy_replica(),
        busy_replica("chat-large-old", outdated=True),
        failed_replica(),
        *backend.replicas_known[1:],
    ]
    seen.page.emulate_media(color_scheme=scheme)
    pages = {
        "models": "/admin/models",
        "model": LARGE,
        "model-small": SMALL,
        "logs": LOGS,
        "history": "/admin/history",
    }
    for width in (400, 1600):
        seen.page.set_viewport_size({"width": width, "height": 950})
        for name, path in pages.items():
            page = seen.open(path)
            fits = seen.ask("document.documentElement.scrollWidth <= innerWidth")
            keep_screenshot(page, tmp_path, f"{name}-{width}-{scheme}")
            assert fits, f"{name} is wider than {width} pixels"
    seen.page.set_viewport_size({"width": 1600, "height": 950})


def test_without_scripts_everything_can_be_read(
    browser: Any, kept: tuple[ScriptedBackend, ServedAdmin], growing: Growing, backend: ScriptedBackend
) -> None:
    growing.text = "one\ntwo\n"
    seen = Seen(browser, kept[1], java_script_enabled=False)
    page = seen.open(LOGS)
    assert page.locator("#log div").all_inner_texts() == ["one", "two"]
    assert page.locator("#follow").is_hidden()
    growing.text += "three\n"
    page.click("button:text-is('Read again')")
    assert page.locator("#log div").all_inner_texts() == ["one", "two", "three"]
    page = seen.open(LARGE)
    assert page.locator("svg.field .line").count() >= 6
    page.click("#chart-requests-table summary")
    assert page.locator("#chart-requests-table td").first.is_visible()
    seen.context.close()
    assert seen.complaints == []
