"""The overview and the nodes in a real Chromium: no barriers in a fleet in trouble, and a drain by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.messages.admin import Done
from tests.ctl.scripted import ScriptedBackend, ServedAdmin
from tests.pages.axe import axe_path, barriers
from tests.pages.big_fleet import big_backend, troubled_backend
from tests.pages.chromium import chromium, chromium_path, keep_screenshot
from tests.pages.opened import Opened

pytest.importorskip("playwright", reason="pip install playwright drives the browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium_path() is None, reason="no Chromium: apt-get install chromium"),
]


class Drains(ScriptedBackend):
    """A fleet in trouble whose nodes really drain."""

    async def drain(self, node_id: str, *, force: bool, by: str) -> Done:
        at = next(at for at, node in enumerate(self.nodes_known) if node.node_id == node_id)
        left = [] if force else ["model-0001: no other node has 4 free GPUs"]
        self.nodes_known[at] = msgspec.structs.replace(self.nodes_known[at], draining=True, drain_left=left)
        return self._done("drain", node_id, force, by)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def fleet() -> ScriptedBackend:
    backend = troubled_backend()
    backend.__class__ = Drains
    return backend


@pytest.fixture
def served(fleet: ScriptedBackend) -> Iterator[ServedAdmin]:
    server = ServedAdmin(fleet)
    yield server
    server.stop()


def test_a_fleet_in_trouble_has_no_barriers_and_fits_every_window(
    browser: Any, served: ServedAdmin, tmp_path: Path
) -> None:
    found: dict[str, list[str]] = {}
    # Every page is measured in both; axe-core looks once at each.
    looks = {
        (400, "light"): ["/admin/nodes/gpu-node-0005"],
        (1600, "dark"): ["/admin", "/admin/nodes/gpu-node-0002"],
    }
    with Opened(browser, served, "/admin") as opened:
        for path in ["/admin", "/admin/nodes?q=gpu", "/admin/nodes/gpu-node-0002", "/admin/nodes/gpu-node-0005"]:
            opened.go(path)
            # What is folded is looked at too.
            opened.ask("for (const each of document.querySelectorAll('main details')) each.open = true")
            for (width, scheme), examined in looks.items():
                opened.page.set_viewport_size({"width": width, "height": 950})
                opened.page.emulate_media(color_scheme=scheme)
                wide = opened.page.evaluate("() => document.documentElement.scrollWidth")
                seen = [f"it is {wide} pixels wide"] if wide > width else []
                if axe_path() is not None and path in examined:
                    seen += barriers(opened.page)
                if seen:
                    found[f"{path} {width} {scheme}"] = seen
                name = path.removeprefix("/admin").partition("?")[0].strip("/").replace("/", "-")
                keep_screenshot(opened.page, tmp_path, f"troubled-{name or 'overview'}-{width}-{scheme}")
    assert not found, "\n".join(f"{where}: {what}" for where, seen in found.items() for what in seen)


def test_a_node_is_drained_by_keyboard_and_the_page_says_so(
    browser: Any, served: ServedAdmin, fleet: ScriptedBackend
) -> None:
    with Opened(browser, served, "/admin/nodes/gpu-node-0001") as opened:
        keys = opened.page.keyboard
        opened.page.locator("h1").click()
        reached = "return document.activeElement.textContent.trim()"
        for _ in range(30):
            if opened.ask(reached) == "Drain…":
                break
            keys.press("Tab")
        assert opened.ask(reached) == "Drain…"
        assert not opened.page.get_by_role("button", name="Drain gpu-node-0001").is_visible(), "asked twice"
        keys.press("Enter")
        keys.press("Tab")
        assert opened.ask("return document.activeElement.name") == "force"
        # News that come meanwhile close nothing and uncheck nothing.
        keys.press("Space")
        fleet.nodes_known[0] = msgspec.structs.replace(fleet.nodes_known[0], reason="its clock is wrong")
        fleet.news.happen()
        opened.page.get_by_text("its clock is wrong").wait_for()
        assert opened.ask("return document.activeElement.name + document.activeElement.checked") == "forcetrue"
        keys.press("Space")
        keys.press("Tab")
        keys.press("Enter")
        opened.page.get_by_role("status").get_by_text("drain was done").wait_for()
        opened.page.wait_for_url("**/admin/nodes/gpu-node-0001")
        # What was done stays on the page over news, and is not said again to whoever takes its address.
        fleet.nodes_known[0] = msgspec.structs.replace(fleet.nodes_known[0], reason="its clock is right")
        fleet.news.happen()
        opened.page.get_by_text("its clock is right").wait_for()
        assert opened.page.get_by_role("status").get_by_text("drain was done").is_visible()
        assert opened.page.locator(".state", has_text="draining").is_visible()
        assert opened.page.get_by_text("model-0001: no other node has 4 free GPUs").is_visible()
        assert opened.page.get_by_role("button", name="Undrain").is_visible()
    assert [asked for asked in fleet.asked if asked[0] == "drain"] == [("drain", "gpu-node-0001", False, "first")]


def test_a_fleet_of_400_nodes_is_seen_soon_and_kept_up_with(browser: Any, tmp_path: Path) -> None:
    backend = big_backend(400)
    served = ServedAdmin(backend)
    try:
        with Opened(browser, served, "/admin") as opened:
            assert opened.page.locator(".tiles > li").count() == 400
            keep_screenshot(opened.page, tmp_path, "overview-of-400-nodes")
            tile = opened.page.locator(".tiles > li").nth(122)
            opened.ask("document.querySelector('#problems details').open = true")
            opened.ask("window.mark = document.querySelectorAll('.tiles > li')[122]")
            backend.nodes_known[122] = msgspec.structs.replace(backend.nodes_known[122], state="lost")
            backend.news.happen()
            tile.get_by_text("✕ lost").wait_for()
            assert opened.ask("return window.mark === document.querySelectorAll('.tiles > li')[122]"), "in place"
            assert opened.ask("return document.querySelector('#problems details').open"), "what is open stays so"
    finally:
        served.stop()
