"""Open pages in a real Chromium keep up: what changes is changed in place, and what somebody does there stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from llmgw.messages.findings import Finding
from llmgw.server.pages.assets import asset_url
from llmgw.server.pages.times import relative
from tests.ctl.scripted import ScriptedBackend, ServedAdmin
from tests.pages.chromium import chromium, chromium_path
from tests.pages.opened import Opened
from tests.pages.visitor import Visitor

pytest.importorskip("playwright", reason="pip install playwright drives the browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium_path() is None, reason="no Chromium: apt-get install chromium"),
]

LINE = "document.getElementById('fresh')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def found(what: str, where: str = "node02") -> Finding:
    # Findings of one check are one item of the overview.
    return Finding(
        check=what.replace(" ", "-"), severity="error", where=where, what=what, remedy="llmgw ctl nodes"
    )


def streams(opened: Opened) -> int:
    return sum("/admin/events" in url for url in opened.asked)


def asked(opened: Opened) -> int:
    """How often the page was asked for."""
    return sum(url.endswith("/admin") for url in opened.asked)


def test_what_changes_is_seen_without_loading_the_page_again(
    browser: Any, served: ServedAdmin, backend: ScriptedBackend
) -> None:
    backend.nodes_known[1].findings.append(found("another"))
    with Opened(browser, served, "/admin") as opened:
        opened.ask("window.mark = document.querySelector('.findings li'); window.mark.dataset.mine = '1'")
        opened.page.locator(".findings li", has_text="another").wait_for()
        backend.nodes_known[1].findings[0] = found("it is another now")
        backend.news.happen()
        opened.page.locator(".findings li", has_text="it is another now").wait_for()
        assert opened.ask("return window.mark === document.querySelector('.findings li')"), "changed in place"
        # Finding after finding: the last one stands there in the end, and the page was asked for now and then.
        before = asked(opened)
        for number in range(200):
            backend.nodes_known[1].findings[0] = found(f"the finding number {number}")
            backend.news.happen()
        opened.page.locator(".findings li", has_text="the finding number 199").wait_for()
        assert asked(opened) - before <= 3


def test_whatever_somebody_does_on_a_page_stays(
    browser: Any, served: ServedAdmin, backend: ScriptedBackend
) -> None:
    for number in range(80):
        backend.nodes_known[1].findings.append(found(f"number {number}"))
    with Opened(browser, served, "/admin") as opened:
        opened.page.locator("main a").last.focus()
        opened.ask("scrollTo(0, 1500)")
        opened.ask("getSelection().selectAllChildren(document.querySelector('.findings li:nth-child(20)'))")
        selected = opened.ask("return getSelection().toString()")
        backend.nodes_known[0].findings.append(found("the newest", "node01"))
        backend.news.happen()
        opened.page.get_by_text("the newest").wait_for()
        assert opened.ask("return document.activeElement.getAttribute('href')").startswith("/admin/fabrics/")
        assert opened.ask("return Math.abs(scrollY - 1500) < 120"), "the browser itself holds what is in view"
        assert opened.ask("return getSelection().toString()") == selected


# `made` is a tree of a text, as the server's answer is; `morph` changes one into another.
MORPH = (
    f"const {{ morph }} = await import({json.dumps(asset_url('morph.js'))});"
    + """
  const made = (text) => {
    return new DOMParser().parseFromString(`<main>${text}</main>`, "text/html").querySelector("main");
  };
  const old = document.importNode(made(it.old), true);
  document.body.append(old);
"""
)

MORPHS = [
    ("texts and attributes", '<p class="a">1</p>', '<p class="b" title="t">2</p>', None),
    ("what goes", "<p>1</p><ul><li>a</li></ul><p>2</p>", "<p>2</p>", None),
    ("what comes", "<p>2</p>", "<h2>1</h2><p>2</p><!-- c -->x<ul></ul>", None),
    ("by id", '<i id="a">1</i><i id="b">2</i><i id="c">3</i>', '<i id="c">3</i><i id="a">0</i><i id="d"/>', None),
    ("ids among others", '<b>1</b><i id="a">2</i> <b>3</b>', '<i id="a">2</i> <b>3</b><b>1</b>', None),
    ("a new first", "<p>2</p><p>3</p>", "<p>1</p><p>2</p><p>3</p>", None),
    ("a last that goes", "<p>1</p><p>2</p>", "<p>1</p>", None),
    ("nothing", "<p>1</p>", "", None),
    ("all of it", "", "<p>1</p>", None),
    ("another tag", '<p id="a">1</p>', '<div id="a">1</div>', None),
    ("a drawing", '<svg><path d="M0 0"/></svg>', '<svg viewBox="0 0 1 1"><path d="M1 1"/><g/></svg>', None),
    ("a field named id", '<form><input name="id"></form>', '<form><input name="id"><b></b></form>', None),
    ("a bar", '<progress max="9" value="1"></progress>', '<progress max="9" value="5"></progress>', None),
    (
        "what is kept",
        '<div data-keep><b>mine</b></div><p>1</p>',
        '<div data-keep class="x">theirs</div><p>2</p>',
        '<div data-keep=""><b>mine</b></div><p>2</p>',
    ),
    ("what is open", "<details open>1</details>", "<details>2</details>", '<details open="">2</details>'),
    ("what is closed", "<details>1</details>", "<details open>2</details>", "<details>2</details>"),
]  # fmt: skip


def test_a_page_changes_into_another_where_they_differ(browser: Any, served: ServedAdmin) -> None:
    with Opened(browser, served, "/admin") as opened:
        for what, old, told, becomes in MORPHS:
            script = """
              morph(old, made(it.told));
              const is = old.innerHTML;
              old.remove();
              return [is, made(it.becomes ?? it.told).innerHTML];
            """
            is_now, wanted = opened.ask(MORPH + script, {"old": old, "told": told, "becomes": becomes})
            assert is_now == wanted, what


def test_fields_focus_and_scroll_positions_survive_a_change_of_order(browser: Any, served: ServedAdmin) -> None:
    rows = "".join(f"<tr><td>{'wide' * 500}{number}</td></tr>" for number in range(50))
    old = f"""
      <input id="typed" value="a"><input id="same" value="a"><textarea id="long">a</textarea>
      <input id="box" type="checkbox"><input id="word" type="hidden" value="a">
      <select id="one"><option>a</option><option>b</option></select>
      <select id="two"><option>a</option><option selected>b</option></select>
      <div class="scroll" id="table"><table>{rows}</table></div>"""
    told = f"""
      <div class="scroll" id="table"><table>{rows}<tr><td>last</td></tr></table></div>
      <input id="typed" value="b"><input id="same" value="b"><textarea id="long">b</textarea>
      <input id="box" type="checkbox"><input id="word" type="hidden" value="b">
      <select id="one"><option>a</option><option>b</option></select>
      <select id="two"><option selected>a</option><option>b</option></select>"""
    script = """
      const at = (id) => document.getElementById(id);
      at("long").value = "mine";
      at("box").checked = true;
      at("one").value = "b";
      at("table").scrollLeft = 300;
      at("typed").focus();
      at("typed").value = "mine";
      at("typed").setSelectionRange(1, 3);
      morph(old, made(it.told));
      const fields = ["typed", "same", "long", "word", "one", "two"].map((id) => at(id).value);
      return [...fields, at("box").checked, document.activeElement.id, at("typed").selectionStart,
        at("table").scrollLeft, old.firstElementChild.id, at("table").textContent.endsWith("last")];
    """
    with Opened(browser, served, "/admin") as opened:
        assert opened.ask(MORPH + script, {"old": old, "told": told}) == [
            "mine", "b", "mine", "b", "b", "a", True, "typed", 1, 300, "table", True,
        ]  # fmt: skip


def test_a_selected_text_is_left_and_made_up_for_afterwards(
    browser: Any, served: ServedAdmin, backend: ScriptedBackend
) -> None:
    with Opened(browser, served, "/admin") as opened:
        opened.ask("getSelection().selectAllChildren(document.querySelector('.findings li'))")
        backend.nodes_known[1].findings[0] = found("changed under the selection")
        backend.nodes_known[1].findings.append(found("changed elsewhere"))
        backend.news.happen()
        opened.page.get_by_text("changed elsewhere").wait_for()
        assert "is DOWN" in opened.ask("return getSelection().toString()")
        opened.ask("getSelection().removeAllRanges()")
        opened.page.get_by_text("changed under the selection").wait_for()


def test_a_server_that_goes_and_comes_back_is_told_of(
    browser: Any, served: ServedAdmin, backend: ScriptedBackend
) -> None:
    with Opened(browser, served, "/admin") as opened:
        served.stop()
        opened.page.wait_for_function(f"() => {LINE}.textContent.startsWith('No news from the server since ')")
        assert "all is shown as it was then" in opened.page.inner_text("#fresh")
        assert opened.page.locator(".findings li").count() == 2
        backend.nodes_known[1].findings[0] = found("while it was away")
        served.start()
        opened.page.get_by_text("while it was away").wait_for()
        assert opened.ask(f"return {LINE}.hidden")
        # What the browser itself says of a server that is away.
        opened.complaints = [each for each in opened.complaints if "net::ERR" not in each]


def test_logging_out_in_another_tab_ends_this_one_and_leads_back(browser: Any, served: ServedAdmin) -> None:
    with Opened(browser, served, "/admin") as opened:
        other = opened.context.new_page()
        other.goto(f"{served.url}/admin/fabrics")
        other.click("text=Log out")
        opened.page.wait_for_function(f"() => {LINE}.textContent.includes('Your session has ended.')")
        link = opened.page.get_by_role("link", name="Log in again")
        assert link.get_attribute("href") == "/admin/login?over=1&next=%2Fadmin"
        count = len(opened.asked)
        link.click()
        opened.log_in()
        assert opened.page.url == f"{served.url}/admin"
        assert len(opened.asked) > count


def test_a_page_without_a_place_for_its_stream_asks_now_and_then(
    browser: Any, served: ServedAdmin, backend: ScriptedBackend
) -> None:
    with Opened(browser, served) as opened:
        opened.page.clock.install()
        opened.context.route("**/admin/events*", lambda route: route.fulfill(status=429, body="{}"))
        opened.go("/admin")
        opened.log_in()
        opened.until(lambda: streams(opened) == 1, "the stream is asked for")
        backend.nodes_known[1].findings[0] = found("asked for")
        opened.page.clock.fast_forward(16_000)
        opened.page.get_by_text("asked for").wait_for()
        count = asked(opened)
        opened.page.clock.fast_forward(16_000)
        opened.until(lambda: asked(opened) > count, "and again")
        opened.context.unroute("**/admin/events*")
        opened.page.clock.fast_forward(61_000)
        opened.until(lambda: streams(opened) >= 2, "the stream is tried again")
        opened.complaints = [each for each in opened.complaints if "429" not in each]


def test_a_hidden_page_asks_nothing_and_a_seen_one_is_at_once_as_things_are(
    browser: Any, served: ServedAdmin, backend: ScriptedBackend
) -> None:
    hide = (
        "Object.defineProperty(document, 'hidden', { value: it, configurable: true });"
        "document.dispatchEvent(new Event('visibilitychange'));"
    )
    with Opened(browser, served, "/admin") as opened:
        opened.until(lambda: streams(opened) == 1, "it listens")
        opened.ask(hide, True)
        count = asked(opened)
        backend.nodes_known[1].findings[0] = found("while hidden")
        backend.news.happen()
        visitor = Visitor(served.url)
        visitor.log_in()
        assert "while hidden" in visitor.http.get("/admin").text
        assert asked(opened) == count
        opened.ask(hide, False)
        opened.page.get_by_text("while hidden").wait_for()
        assert streams(opened) == 2


def test_another_version_of_the_server_gets_its_own_scripts_and_styles(
    browser: Any, served: ServedAdmin, backend: ScriptedBackend
) -> None:
    with Opened(browser, served, "/admin") as opened:
        opened.ask("window.mark = 1")

        def other(route: Any) -> None:
            answer = route.fetch()
            route.fulfill(response=answer, body=answer.text().replace("/pages.css", "/pages.css?another"))

        opened.until(lambda: streams(opened) == 1, "it listens")
        opened.context.route("**/admin", other, times=1)
        backend.news.happen()
        opened.page.wait_for_function("() => window.mark === undefined")


def test_a_page_that_has_moved_takes_whoever_looks_along(
    browser: Any, served: ServedAdmin, backend: ScriptedBackend
) -> None:
    with Opened(browser, served, "/admin") as opened:
        opened.until(lambda: streams(opened) == 1, "it listens")
        moved = {"status": 303, "headers": {"location": "/admin/fabrics"}}
        opened.context.route("**/admin", lambda route: route.fulfill(**moved), times=2)
        backend.news.happen()
        opened.page.wait_for_url("**/admin/fabrics")


def test_times_say_the_same_in_the_browser_as_from_the_server(browser: Any, served: ServedAdmin) -> None:
    now = 1_700_000_000.0
    apart = [0, 0.4, 59.9, 60, 3599, 3600, 172_799, 172_800, 1e7, -0.4, -1, -59, -60, -90_000]
    with Opened(browser, served, "/admin") as opened:
        script = f"const {{ relative }} = await import({json.dumps(asset_url('ago.js'))});"
        told = opened.ask(script + "return it.apart.map((each) => relative(it.now - each, it.now))",
                          {"apart": apart, "now": now})  # fmt: skip
        assert told == [relative(now - each, now) for each in apart]
        opened.ask(
            "const made = document.createElement('time'); made.className = 'ago'; made.textContent = 'long ago';"
            "made.dateTime = new Date(Date.now() - 90_000).toISOString(); made.id = 'made';"
            "document.querySelector('footer').append(made)"
        )
        opened.page.wait_for_function("() => document.getElementById('made').textContent === '1 min ago'")


def test_without_scripts_every_page_is_there_as_of_when_it_was_loaded(browser: Any, served: ServedAdmin) -> None:
    with Opened(browser, served, java_script_enabled=False) as opened:
        opened.go("/admin")
        opened.log_in()
        assert opened.page.locator(".findings li").count() == 2
        assert not opened.page.locator("#fresh").is_visible()
        opened.page.click("nav >> text=Fabrics")
        current = opened.page.locator("nav a[aria-current]")
        assert [current.inner_text(), current.get_attribute("aria-current")] == ["Fabrics", "page"]
        assert opened.page.locator("time.ago").first.inner_text().endswith(" ago")
        opened.page.locator("main a").first.click()
        assert opened.page.locator("nav a[aria-current]").get_attribute("aria-current") == "true"
        opened.page.click("text=Log out")
        assert opened.page.url.endswith("/admin/login")
