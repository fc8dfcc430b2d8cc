"""The drawing in a real Chromium: seen, pointed at, clicked, searched, walked through by keys, and refreshed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.server.fabrics.known import KnownFabric
from tests.ctl.scripted import TOKEN, ScriptedBackend, ServedAdmin
from tests.pages.chromium import chromium, chromium_path, keep_screenshot, log_in, open_drawing, until
from tests.pages.fabrics import HOSTILE, ID, Alive, know, small_fabric

pytest.importorskip("playwright", reason="pip install playwright drives the browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium_path() is None, reason="no Chromium: apt-get install chromium"),
]

PAGE = "/admin/fabrics/ib-a"
FRAMES_MS_MAX = 8.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


class Seen:
    """A page with the drawing, and everything that it complained of or asked for."""

    def __init__(self, browser: Any, served: ServedAdmin, **context: Any) -> None:
        self.served = served
        self.context = browser.new_context(**{"viewport": {"width": 1600, "height": 950}, **context})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        self.page.on("request", lambda request: self.asked.append(request.url))
        log_in(self.page, served.url, PAGE)
        open_drawing(self.page)

    def ask(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self.page.evaluate(f"() => {script}")

    def news(self) -> None:
        """What the page does every fifteen seconds, now."""
        self.page.evaluate("() => drawing.news.ask()")

    def at(self, key: str) -> tuple[float, float]:
        """Where an item is in the window."""
        box = self.page.locator("#sheet").bounding_box()
        x, y = self.page.evaluate("key => drawing.place(key)", key)
        return box["x"] + x, box["y"] + y

    def key_of(self, label: str) -> str:
        """The key of a switch or an adapter by its label."""
        script = (
            "label => [...drawing.fabric.switches, ...drawing.fabric.adapters]"
            ".find(each => each.label === label)?.key"
        )
        found: str = self.page.evaluate(script, label)
        return found

    def camera(self) -> list[float]:
        found: list[float] = self.ask("[drawing.camera.scale, drawing.camera.x, drawing.camera.y]")
        return found

    def still(self) -> None:
        """Waits until nothing glides any more."""
        until(lambda: self.ask("drawing.camera.glide === null && !drawing.stale"), "the drawing rests")

    def text(self, selector: str) -> str:
        found: str = self.page.locator(selector).inner_text()
        return found


@pytest.fixture
def seen(browser: Any, served: ServedAdmin) -> Iterator[Seen]:
    """The drawing at 1600 pixels; whatever a test does, the page must not complain of anything."""
    seen = Seen(browser, served)
    yield seen
    complaints = list(seen.complaints)
    seen.context.close()
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_it_is_drawn_at_every_width_and_in_both_themes(
    browser: Any, served: ServedAdmin, tmp_path: Path, width: int, scheme: str
) -> None:
    viewport = {"width": width, "height": 950}
    ratio = 2 if width == 400 else 1
    seen = Seen(browser, served, viewport=viewport, color_scheme=scheme, device_scale_factor=ratio)
    seen.still()
    for canvas in ("still", "moving"):
        script = (
            f"(() => {{ const it = document.getElementById('{canvas}');"
            " const all = it.getContext('2d').getImageData(0, 0, it.width, it.height).data;"
            " let seen = 0; for (let at = 3; at < all.length; at += 4) seen += all[at] > 0; return seen; })()"
        )
        assert seen.ask(script) > 500, f"the {canvas} canvas is empty"
    sharp, wide = seen.ask(
        "[document.getElementById('still').width, document.getElementById('sheet').clientWidth]"
    )
    assert sharp == ratio * wide, "a pixel of the drawing is one of the screen"
    assert seen.ask("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    legend = seen.text("#legend")
    assert "78 × 4xNDR" in legend
    assert "2 below rate" in legend
    assert "1 down" in legend
    keep_screenshot(seen.page, tmp_path, f"fabric-{width}-{scheme}")
    assert seen.complaints == []
    assert [url for url in seen.asked if not url.startswith(served.url)] == [], "nothing leaves this host"
    seen.context.close()


def test_pointing_at_a_switch_fades_what_it_does_not_touch(seen: Seen, tmp_path: Path) -> None:
    seen.still()
    leaf = seen.key_of("leaf-2")
    seen.page.mouse.move(*seen.at(leaf))
    until(lambda: seen.ask("drawing.fade") == 1, "all else has faded")
    assert "leaf-2, leaf switch, 16 adapters, 4 cables to switches" in seen.text("#hint")
    touched = set(seen.ask("[...drawing.focus.keys]"))
    assert {seen.key_of("leaf-2"), seen.key_of("spine-1"), seen.key_of("spine-2")} <= touched
    assert seen.key_of("leaf-1") not in touched
    assert len(touched) == 19
    keep_screenshot(seen.page, tmp_path, "hover")
    seen.page.mouse.move(5, 5)
    until(lambda: seen.ask("drawing.fade") == 0, "all is back")
    assert not seen.page.locator("#hint").is_visible()


def test_clicking_opens_a_panel_with_ports_counters_and_replicas(seen: Seen, tmp_path: Path) -> None:
    seen.still()
    seen.page.mouse.click(*seen.at(seen.key_of("node0001 mlx5_1")))
    until(lambda: seen.page.locator("#panel").is_visible(), "the panel opens")
    panel = seen.text("#panel")
    assert "node0001 mlx5_1" in panel
    for said in (
        "ACTIVE, LinkUp",
        "400 Gb/sec (4X NDR)",
        "60 Gb/s",
        "260 Gb/s",
        "symbol_error",
        "chat-large-1a2b",
    ):
        assert said in panel
    assert "link_downed" not in panel
    assert "standby" in panel, "the state of the subnet manager that runs there"
    seen.page.locator("#panel").get_by_role("button", name="leaf-2").click()
    assert "leaf switch" in seen.text("#panel")
    assert "65, 20 cables" in seen.text("#panel")
    seen.still()
    keep_screenshot(seen.page, tmp_path, "panel")
    seen.page.get_by_role("button", name="Close").click()
    assert not seen.page.locator("#panel").is_visible()
    # A box is its node: all its adapters, wherever they are.
    seen.page.keyboard.press("f")
    seen.still()
    x, y = seen.at(seen.key_of("node0005 mlx5_3"))
    seen.page.mouse.click(x, y + 18 * seen.camera()[0])
    assert seen.text("#panel h2") == "node0005"
    assert "✕ DOWN" in seen.text("#panel")


def test_a_node_is_found_by_its_name(seen: Seen, tmp_path: Path) -> None:
    before = seen.camera()
    seen.page.keyboard.press("/")
    seen.page.keyboard.type("node0014")
    found = seen.page.locator("#found li")
    assert found.first.inner_text().startswith("node0014")
    assert found.count() == 5, "the node, and its four adapters"
    keep_screenshot(seen.page, tmp_path, "search")
    seen.page.keyboard.press("Enter")
    assert seen.text("#panel h2") == "node0014"
    seen.still()
    assert seen.camera() != before
    box = seen.page.locator("#sheet").bounding_box()
    x, y = seen.at("node node0014")
    assert box["x"] < x < box["x"] + box["width"]
    assert box["y"] < y < box["y"] + box["height"]
    seen.page.keyboard.press("/")
    seen.page.keyboard.type("nothing of that name")
    assert "nothing here is called that" in seen.text("#found")


def test_the_planted_slow_cable_is_found(seen: Seen, tmp_path: Path) -> None:
    seen.still()
    assert seen.text("#worst") == "▼ 2 slow"
    names = []
    for _ in range(2):
        seen.page.click("#worst")
        names.append(seen.text("#panel h2"))
        panel = seen.text("#panel")
        assert "its speed is HDR, not NDR" in panel
        assert "4xHDR, 200 Gb/s" in panel
        assert "4xNDR, 400 Gb/s" in panel
    assert any("leaf-1" in name and "spine-1" in name for name in names), names
    seen.still()
    keep_screenshot(seen.page, tmp_path, "slow-cable")
    seen.page.keyboard.press("Escape")
    seen.page.keyboard.press("f")
    seen.still()
    # The marker on it says from what to what, and can be clicked.
    marker = seen.ask(
        "(() => { const found = drawing.moving.markers.find(each => each.cable.b.kind === 'switch'"
        " && each.cable.a.kind === 'switch'); return found.box; })()"
    )
    box = seen.page.locator("#sheet").bounding_box()
    seen.page.mouse.click(box["x"] + (marker[0] + marker[2]) / 2, box["y"] + (marker[1] + marker[3]) / 2)
    assert "spine-1" in seen.text("#panel h2")


def test_it_can_be_used_without_a_mouse(seen: Seen) -> None:
    seen.page.locator("#sheet").focus()
    seen.page.keyboard.press("Tab")
    told = seen.text("#told")
    assert "should at 4xNDR" in told
    assert "(1 of 9)" in told
    for _ in range(2):
        seen.page.keyboard.press("Tab")
    assert "port 1 is down" in seen.text("#told"), "what is wrong comes first"
    seen.page.keyboard.press("Tab")
    assert seen.text("#told").startswith("spine-1, spine")
    seen.page.keyboard.press("ArrowRight")
    assert seen.text("#told").startswith("spine-2, spine")
    seen.page.keyboard.press("ArrowDown")
    assert seen.text("#told").startswith("leaf-3, leaf") or seen.text("#told").startswith("leaf-4, leaf")
    seen.page.keyboard.press("Enter")
    assert "leaf switch" in seen.text("#panel")
    assert seen.ask("document.activeElement.id") == "sheet"
    seen.page.keyboard.press("Enter")
    assert seen.ask("document.activeElement.closest('#panel') !== null"), "once more goes into the panel"
    seen.page.keyboard.press("Escape")
    assert seen.ask("document.activeElement.id") == "sheet"
    assert not seen.page.locator("#panel").is_visible()
    seen.page.keyboard.press("Escape")
    assert seen.ask("drawing.cursor") is None
    # Now arrows move the sheet, and letters zoom and fit.
    seen.still()
    fitted = seen.camera()
    seen.page.keyboard.press("+")
    assert seen.camera()[0] > fitted[0]
    seen.page.keyboard.press("-")
    assert seen.camera()[0] == pytest.approx(fitted[0])
    x = seen.camera()[1]
    seen.page.keyboard.press("ArrowRight")
    assert seen.camera()[1] > x
    seen.page.keyboard.press("f")
    seen.still()
    # And Tab behind the last item leaves: nobody is caught in here.
    seen.page.keyboard.press("Shift+Tab")
    assert seen.ask("document.activeElement.id") != "sheet"


def test_the_wheel_zooms_at_the_pointer_and_dragging_moves(seen: Seen) -> None:
    seen.still()
    leaf = seen.key_of("leaf-3")
    there = seen.at(leaf)
    scale = seen.camera()[0]
    seen.page.mouse.move(*there)
    seen.page.mouse.wheel(0, -400)
    until(lambda: seen.camera()[0] > scale * 1.2, "it zooms")
    assert seen.at(leaf) == pytest.approx(there, abs=0.5), "what is under the pointer stays there"
    seen.page.mouse.move(300, 600)
    seen.page.mouse.down()
    seen.page.mouse.move(340, 620)
    seen.page.mouse.move(400, 650, steps=4)
    seen.page.mouse.up()
    moved = seen.at(leaf)
    assert moved[0] - there[0] == pytest.approx(100, abs=45)
    assert moved[1] - there[1] == pytest.approx(50, abs=25)
    assert not seen.page.locator("#panel").is_visible(), "a drag is no click"


def test_two_fingers_zoom(browser: Any, served: ServedAdmin) -> None:
    seen = Seen(browser, served, viewport={"width": 400, "height": 900}, has_touch=True, is_mobile=True)
    seen.still()
    seen.page.locator("#sheet").scroll_into_view_if_needed()
    scale = seen.camera()[0]
    box = seen.page.locator("#sheet").bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + 120)
    hands = seen.context.new_cdp_session(seen.page)
    for kind, apart in (("touchStart", 30), ("touchMove", 50), ("touchMove", 90), ("touchEnd", None)):
        fingers = [] if apart is None else [{"x": middle[0] + side * apart, "y": middle[1]} for side in (-1, 1)]
        hands.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})
    until(lambda: seen.camera()[0] > scale * 1.5, "it zooms")
    assert seen.complaints == []
    seen.context.close()


def test_colours_tell_rates_rails_load_or_replicas(seen: Seen, tmp_path: Path) -> None:
    for by, said in (
        ("rail", "rail 3"),
        ("load", "under 2 %"),
        ("replica", "chat-large-1a2b"),
        ("rate", "78 × 4xNDR"),
    ):
        seen.page.select_option("#by", by)
        assert said in seen.text("#legend")
        seen.still()
        keep_screenshot(seen.page, tmp_path, f"by-{by}")


def frames_of(seen: Seen) -> int:
    """How many frames were drawn while the browser could have drawn thirty."""
    found: int = seen.page.evaluate(
        "async () => { const before = drawing.drawn; for (let n = 0; n < 30; n += 1)"
        " await new Promise(requestAnimationFrame); return drawing.drawn - before; }"
    )
    return found


def test_who_wants_less_motion_gets_none(browser: Any, served: ServedAdmin) -> None:
    calm = Seen(browser, served, reduced_motion="reduce")
    calm.still()
    assert frames_of(calm) == 0
    calm.page.click("#worst")
    assert calm.ask("drawing.camera.glide") is None, "it is there at once"
    calm.page.emulate_media(reduced_motion="no-preference")
    until(lambda: frames_of(calm) > 10, "it moves when that is wanted again")
    calm.context.close()


def test_news_keep_the_view_and_what_is_chosen(seen: Seen, alive: Alive) -> None:
    seen.still()
    seen.page.click("#worst")
    seen.page.keyboard.press("Escape")
    seen.still()
    seen.page.mouse.click(*seen.at(seen.key_of("leaf-1")))
    seen.still()
    view, version = seen.camera(), seen.ask("drawing.fabric.version")
    chosen = seen.ask("drawing.selected.key")
    seen.news()
    assert (seen.camera(), seen.ask("drawing.selected.key")) == (view, chosen)
    assert seen.ask("drawing.fabric.version") == version, "the same map is not asked for again"
    made = small_fabric()
    spine = made.switches[5]
    made.rerate(spine, 1, "4xEDR")
    know(alive, made, at=time.time())
    alive.fleet.nodes.pop("node0006")
    seen.news()
    assert seen.ask("drawing.fabric.version") != version
    assert seen.text("#worst") == "▼ 3 slow"
    assert (seen.camera(), seen.ask("drawing.selected.key")) == (view, chosen)
    assert "4xEDR of 4xNDR" in seen.text("#panel"), "the panel tells what is new"
    assert "3 below their rate" in seen.text("#map-text"), "and so does what stands above"
    assert len([url for url in seen.asked if "live=1" in url]) == 2


def test_what_is_wrong_and_who_manages_it_is_told_above_the_drawing_as_it_changes(
    seen: Seen, alive: Alive
) -> None:
    assert seen.text("#managers").startswith("managed by node0001 mlx5_0")
    known = alive.known[0]
    known.problems += ["<b>the master changed</b>", "two names stand for it"]
    known.errors.append("two names stand for it")
    known.silent_since = time.time()
    seen.news()
    assert "▲ <b>the master changed</b>" in seen.text("#problems").splitlines()
    assert "✕ two names stand for it" in seen.text("#problems").splitlines()
    assert "master changed" in seen.text("#problems .warn"), "a warning looks like one"
    assert seen.text("#managers").startswith("managers last seen: ")
    known.problems.clear()
    alive.fleet.nodes.pop("node0005")
    seen.news()
    assert seen.text("#problems") == ""


def test_pages_of_words_keep_up_and_say_when_they_cannot(
    browser: Any, served: ServedAdmin, alive: Alive, backend: ScriptedBackend
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.clock.install()
    log_in(page, served.url, "/admin/fabrics")
    page.wait_for_load_state()

    def after(selector: str, words: str) -> None:
        page.clock.run_for(15_100)
        until(lambda: words in page.locator(selector).inner_text(), words)

    link = page.get_by_role("link", name="ib-a")
    link.focus()
    alive.known[0].problems.append("the master changed")
    after("main", "▲ the master changed")
    assert page.locator(".card.doubtful .problems .warn").count() == 1
    alive.known[0].errors.append("the master changed")
    after("main", "✕ the master changed")
    assert page.locator(".card.troubled .problems .warn").count() == 0
    assert link.evaluate("each => each === document.activeElement"), "what was focused still is"
    page.route("**/admin/fabrics", lambda route: route.abort())
    after("#fresh", "No news from the server since")
    page.unroute("**/admin/fabrics")
    page.clock.run_for(15_100)
    until(lambda: not page.locator("#fresh").is_visible(), "it is there again")
    backend.tokens_known.clear()
    after("#fresh", "Your session has ended. Log in again")
    context.close()


def test_it_asks_again_by_itself(browser: Any, served: ServedAdmin) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.clock.install()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "live=1" in request.url else None)
    log_in(page, served.url, PAGE)
    page.wait_for_selector("#legend span", state="attached")
    assert asked == []
    page.clock.run_for(15_100)
    until(lambda: page.evaluate("1") and asked, "news are asked for")
    context.close()


def test_what_a_fabric_calls_itself_is_text_and_nothing_else(seen: Seen, tmp_path: Path) -> None:
    seen.page.keyboard.press("/")
    seen.page.keyboard.type("<script>")
    assert seen.page.locator("#found li").first.inner_text().startswith(HOSTILE[:20])
    seen.page.keyboard.press("Enter")
    assert HOSTILE in seen.text("#panel h2")
    assert HOSTILE in seen.text("#told") or HOSTILE in seen.page.locator("#told").text_content()
    seen.still()
    keep_screenshot(seen.page, tmp_path, "hostile")
    assert seen.ask("window.hacked") is None
    assert seen.ask("document.querySelectorAll('main script, main img').length") == 0


def test_the_end_of_a_session_is_said_with_the_way_back(
    browser: Any, served: ServedAdmin, backend: ScriptedBackend
) -> None:
    seen = Seen(browser, served)
    backend.tokens_known.clear()
    seen.news()
    assert seen.text("#news") == "Your session has ended. Log in again"
    backend.tokens_known[TOKEN] = "first"
    seen.page.get_by_role("link", name="Log in again").click()
    assert "Your session has ended" in seen.text("[role=alert]")
    seen.page.fill("#token", TOKEN)
    seen.page.click("button.main")
    seen.page.wait_for_url(f"{served.url}/admin/fabrics/{ID}")
    seen.context.close()


def test_a_server_that_does_not_answer_is_said_and_since_when(browser: Any, served: ServedAdmin) -> None:
    seen = Seen(browser, served)
    seen.page.route("**/topology*", lambda route: route.abort())
    seen.news()
    assert seen.text("#news").startswith("No news since")
    assert "it cannot be reached" in seen.text("#news")
    assert seen.page.locator("#news.stale").count() == 1
    seen.page.unroute("**/topology*")
    seen.news()
    assert seen.text("#news").startswith("map of")
    seen.context.close()


def test_a_fabric_without_a_map_says_so(browser: Any, served: ServedAdmin, alive: Alive) -> None:
    alive.known = [
        KnownFabric(id=ID, names=("ib-a",), map_error="no node of it could be asked", nodes=("node0001",))
    ]
    context = browser.new_context()
    page = context.new_page()
    log_in(page, served.url, PAGE)
    page.wait_for_selector("#none:visible")
    assert "no node of it could be asked" in page.locator("#none").inner_text()
    # Ports are told all the same.
    page.wait_for_selector("#lost button")
    context.close()


def test_without_javascript_there_is_a_picture(browser: Any, served: ServedAdmin, tmp_path: Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 400, "height": 900})
    page = context.new_page()
    log_in(page, served.url, PAGE)
    table = page.get_by_role("region", name="Table of ports")
    assert table.get_by_role("link").first.get_attribute("href").startswith("/admin/nodes/")
    until(lambda: (table.bounding_box() or {"width": 999})["width"] <= 400, "the table scrolls, not the page")
    picture = page.locator("img.plain")
    until(lambda: (picture.bounding_box() or {"height": 0})["height"] > 100, "the picture is there")
    assert not page.locator("#drawing").is_visible()
    keep_screenshot(page, tmp_path, "without-javascript")
    context.close()


def test_the_pages_around_it(browser: Any, served: ServedAdmin, tmp_path: Path) -> None:
    for scheme, width in (("light", 400), ("dark", 1600)):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.goto(f"{served.url}/admin")
        keep_screenshot(page, tmp_path, f"login-{width}-{scheme}")
        log_in(page, served.url, "/admin")
        assert "port 1 of mlx5_1 is DOWN" in page.locator("main").inner_text()
        keep_screenshot(page, tmp_path, f"overview-{width}-{scheme}")
        page.locator("nav").get_by_role("link", name="Fabrics").click()
        assert "2 below their rate" in page.locator("main").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        keep_screenshot(page, tmp_path, f"fabrics-{width}-{scheme}")
        page.get_by_role("link", name="ib-a").click()
        page.wait_for_selector("#legend span", state="attached")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(f"{served.url}/admin/login")
        context.close()


@pytest.mark.scenario  # what is timed has the machine to itself
def test_a_thousand_adapters_cost_scripts_less_than_eight_milliseconds_a_frame() -> None:
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "drawing", "--adapters", "1000", "--json", "/dev/stdout"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout[done.stdout.index("{\n") :])
    limits = {item["what"]: item["limit"] for item in told["figures"] if item["limit"]}
    assert set(limits.values()) == {FRAMES_MS_MAX}
