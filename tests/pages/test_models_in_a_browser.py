"""Models and logs in a real Chromium: kept up without reloading, followed, and readable at any width."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.messages.admin import LogView
from llmgw.messages.agent import Progress
from llmgw.server.admin.backend import AdminError
from tests.ctl.scripted import ScriptedBackend, ServedAdmin, replica
from tests.pages.axe import LOOKS, axe_path, barriers
from tests.pages.chromium import chromium, chromium_path, keep_screenshot, until
from tests.pages.models import (
    BREAKOUT,
    ESCAPED,
    ESCAPES,
    PRINTED,
    SCRIPT,
    busy_replica,
    entries,
    failed_replica,
    keep_history,
    requests,
    shard,
)
from tests.pages.opened import Opened

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
def shared(browser: Any, kept: tuple[ScriptedBackend, ServedAdmin]) -> Iterator[Opened]:
    opened = Opened(browser, kept[1], "/admin/models")
    yield opened
    opened.context.close()


@pytest.fixture
def opened(shared: Opened) -> Iterator[Opened]:
    shared.complaints.clear()
    shared.asked.clear()
    yield shared
    assert shared.complaints == []
    assert [url for url in shared.asked if not url.startswith(shared.served.url)] == []


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


def go(opened: Opened, path: str) -> Any:
    """The page at an address."""
    opened.go(path)
    return opened.page


def happen(opened: Opened, backend: ScriptedBackend) -> None:
    """Tell open pages that there is news."""
    opened.served._loop.call_soon_threadsafe(backend.news.happen)


def test_a_replica_goes_from_starting_to_ready_without_reloading(
    opened: Opened, backend: ScriptedBackend
) -> None:
    page = go(opened, SMALL)
    page.evaluate("() => { window.same = true; }")
    card = page.locator("#replica-chat-small-3c4d")
    assert "▲ starting" in card.inner_text()
    assert card.locator("progress").get_attribute("value") == str(5 * 2**30)
    page.fill("#replicas-1", "7")

    def become(state: str, phase: str, progress: Progress | None) -> None:
        shards = [shard("chat-small-3c4d", 0, node="node01", phase=phase, progress=progress)]
        backend.replicas_known = [
            replica("chat-small-3c4d", model="chat-small", nodes=["node01"], state=state, shards=shards)
        ]
        happen(opened, backend)

    become("starting", "fetching", Progress(what="weights", done_bytes=9 * 2**30, total_bytes=10 * 2**30))
    until(lambda: card.locator("progress").get_attribute("value") == str(9 * 2**30), "the bar grows")
    become("ready", "ready", None)
    until(lambda: "● ready" in card.locator("header").inner_text(), "the replica is ready")
    assert card.locator("progress").count() == 0
    assert opened.ask("return window.same"), "it was not loaded again"
    assert page.input_value("#replicas-1") == "7", "what was typed stays"


def test_a_log_is_followed_until_its_shard_is_over(opened: Opened, growing: Growing, tmp_path: Path) -> None:
    growing.text = "first\nsecond\nunfini"
    page = go(opened, f"{LOGS}?lines=2")
    log = page.locator("#log")
    until(
        lambda: opened.ask("return document.getElementById('log-said').textContent") == "Following.", "it follows"
    )
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
    opened: Opened, growing: Growing
) -> None:
    growing.text = "".join(f"line {number} {'x' * 40}\n" for number in range(7000))
    page = go(opened, f"{LOGS}?lines=7000")
    until(
        lambda: opened.ask("return document.querySelector('#log').textContent.includes('line 6999 ')"),
        "it catches up",
    )
    until(lambda: opened.ask("return document.querySelector('#log').childElementCount") == 5000, "the oldest go")
    at_end = "(log => log.scrollHeight - log.scrollTop - log.clientHeight < 3)(document.querySelector('#log'))"
    until(lambda: opened.ask(f"return {at_end}"), "the end is in view")
    page.locator("#log").evaluate("log => { log.scrollTop = 100; }")
    until(lambda: page.locator("#follow").get_attribute("aria-pressed") == "false", "it pauses")
    assert "Paused" in page.locator("#log-said").inner_text()
    growing.text += "later\n"
    asked = growing.asked
    page.wait_for_timeout(600)
    assert growing.asked <= asked + 1
    assert not opened.ask("return document.querySelector('#log').textContent.includes('later')")
    page.click("#follow")
    until(
        lambda: opened.ask("return document.querySelector('#log').lastElementChild.textContent") == "later",
        "it goes on",
    )
    until(lambda: opened.ask(f"return {at_end}"), "the end is in view again")


def test_what_the_shard_is_stands_above_its_log_as_it_changes(
    opened: Opened, backend: ScriptedBackend, growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.text = "loading\n"
    page = go(opened, LOGS)
    above = page.locator("#shard")
    one = backend.replicas_known[0]

    def become(**changes: Any) -> None:
        rank, *others = one.shards
        shards = [msgspec.structs.replace(rank, **changes), *others]
        known = [msgspec.structs.replace(one, shards=shards), *backend.replicas_known[1:]]
        monkeypatch.setattr(backend, "replicas_known", known)

    become(phase="starting", reason="it loads weights")
    until(lambda: "starting" in above.inner_text() and "it loads weights" in above.inner_text(), "it starts")
    growing.silent = True
    become(phase="ready")
    until(lambda: "ready" in above.inner_text(), "it is ready, also while its node does not answer")
    growing.silent = False
    become(phase="failed", reason="killed by SIGKILL")
    growing.over = True
    until(lambda: "this is all that it said" in page.locator("#log-said").inner_text(), "its end is said")
    assert "failed" in above.inner_text()
    assert "ready" not in above.inner_text()
    assert page.locator("#log").inner_text() == "loading", "the output is left alone"
    opened.complaints[:] = [each for each in opened.complaints if "504" not in each]


def test_a_node_that_does_not_answer_is_said_and_asked_again(opened: Opened, growing: Growing) -> None:
    growing.text = "before\n"
    page = go(opened, LOGS)
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
    opened.complaints[:] = [each for each in opened.complaints if "504" not in each]


def test_a_line_reads_the_same_whether_a_script_or_the_server_writes_it(opened: Opened, growing: Growing) -> None:
    page = go(opened, LOGS)
    read = page.evaluate(
        """async (lines) => {
          const source = document.querySelector("script[src$='logs.js']").src.replace("logs.js", "plain_text.js");
          const { plainLine } = await import(source);
          return lines.map(plainLine);
        }""",
        [printed for printed, _ in PRINTED],
    )
    assert read == [words for _, words in PRINTED]


def test_a_replica_that_goes_while_it_is_followed_is_said_to_be_gone(
    opened: Opened, backend: ScriptedBackend, growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.text = "before\n"
    page = go(opened, LOGS)
    until(lambda: page.locator("#log-said").inner_text() == "Following.", "it follows")

    async def gone(*asked: object) -> LogView:
        raise AdminError(404, "unknown-replica", "there is no replica 'chat-large-1a2b'")

    monkeypatch.setattr(backend, "logs", gone)
    until(lambda: "The replica is gone" in page.locator("#log-said").inner_text(), "said")
    assert page.locator("#log").inner_text() == "before"
    assert page.locator("#shard").inner_text() == "The replica has ended."
    opened.complaints[:] = [each for each in opened.complaints if "404" not in each]


def test_a_very_long_line_wraps(opened: Opened, growing: Growing) -> None:
    growing.text = "y" * 30_000 + "\n"
    page = go(opened, LOGS)
    until(lambda: page.locator("#log-said").inner_text() == "Following.", "it follows")
    assert "… and 10000 characters more" in page.locator("#log").inner_text()
    assert opened.ask("return (log => log.scrollWidth <= log.clientWidth)(document.querySelector('#log'))")


def test_a_scale_that_must_be_confirmed_is_confirmed_with_a_second_button(
    opened: Opened, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "scale_refused", "it would stop 3 of 8 ready replicas, more than 20%")
    page = go(opened, LARGE)
    page.fill("#replicas-1", "0")
    page.click("#profile-1 button:text-is('Scale')")
    page.wait_for_selector(".scale .said")
    assert page.input_value("#replicas-1") == "0"
    happen(opened, backend)
    page.wait_for_timeout(300)
    page.click("button:text-is('Scale to 0 all the same')")
    page.wait_for_selector(".done")
    assert ("scale", "org/chat-large", "default", 0, "first", "confirmed") in backend.asked
    opened.complaints[:] = [each for each in opened.complaints if "409" not in each]


def test_a_model_in_trouble_has_no_barriers_and_fits_a_telephone(
    opened: Opened, backend: ScriptedBackend, growing: Growing, tmp_path: Path
) -> None:
    growing.text = f"INFO loading {'weights ' * 80}\nWARNING \x1b[33mslow\x1b[0m\n" * 20
    growing.over = True
    backend.replicas_known = [
        busy_replica(),
        busy_replica("chat-large-old", outdated=True),
        failed_replica(),
        *backend.replicas_known[1:],
    ]
    wrong: dict[str, list[str]] = {}
    for name, path in {"model-in-trouble": LARGE, "log-of-a-failure": LOGS}.items():
        page = go(opened, path)
        page.evaluate("() => { for (const each of document.querySelectorAll('details')) each.open = true; }")
        for width, scheme, rules in LOOKS:
            page.set_viewport_size({"width": width, "height": 950})
            page.emulate_media(color_scheme=scheme)
            keep_screenshot(page, tmp_path, f"{name}-{width}-{scheme}")
            wide = opened.ask("return document.documentElement.scrollWidth")
            found = [f"it is {wide} pixels wide"] if wide > width else []
            if axe_path() is not None and rules != []:
                found += barriers(page, rules)
            if found:
                wrong[f"{name} {width} {scheme}"] = found
    page.set_viewport_size({"width": 1600, "height": 950})
    assert wrong == {}


def test_on_a_phone_the_history_says_why_without_being_moved(opened: Opened) -> None:
    for path in ("/admin/history", LARGE):
        page = go(opened, path)
        page.set_viewport_size({"width": 400, "height": 950})
        cells = "[...document.querySelectorAll('.history td')]"
        right = f"return Math.max(...{cells}.map((each) => each.getBoundingClientRect().right))"
        assert page.locator(".history td.why").count() > 0
        assert 0 < opened.ask(right) <= 400
        page.set_viewport_size({"width": 1600, "height": 950})


def test_without_scripts_everything_can_be_read(
    browser: Any, kept: tuple[ScriptedBackend, ServedAdmin], growing: Growing, backend: ScriptedBackend
) -> None:
    growing.text = "one\ntwo\n"
    opened = Opened(browser, kept[1], "/admin/models", java_script_enabled=False)
    page = go(opened, LOGS)
    assert page.locator("#log div").all_inner_texts() == ["one", "two"]
    assert page.locator("#follow").is_hidden()
    growing.text += "three\n"
    page.click("button:text-is('Read again')")
    assert page.locator("#log div").all_inner_texts() == ["one", "two", "three"]
    page = go(opened, LARGE)
    assert page.locator("svg.field .line").count() >= 6
    page.click("#chart-requests-table summary")
    assert page.locator("#chart-requests-table td").first.is_visible()
    opened.context.close()
    assert opened.complaints == []
