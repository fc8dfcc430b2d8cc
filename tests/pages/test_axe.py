"""Every page in both themes and at both widths: no barriers, nothing that sticks out; pictures are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.scripted import ServedAdmin
from tests.pages.axe import LOOKS, PAGES, axe_path, barriers
from tests.pages.chromium import chromium, chromium_path, keep_screenshot
from tests.pages.opened import Opened

pytest.importorskip("playwright", reason="pip install playwright drives the browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium_path() is None, reason="no Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def test_no_page_has_barriers_or_is_wider_than_its_window(
    browser: Any, served: ServedAdmin, tmp_path: Path
) -> None:
    found: dict[str, list[str]] = {}
    with Opened(browser, served) as opened:
        for path in ["/admin/login", *PAGES]:
            opened.go(path)
            for width, scheme, rules in LOOKS:
                opened.page.set_viewport_size({"width": width, "height": 950})
                opened.page.emulate_media(color_scheme=scheme)
                name = (
                    f"{path.removeprefix('/admin').strip('/').replace('/', '-') or 'overview'}-{width}-{scheme}"
                )
                keep_screenshot(opened.page, tmp_path, name)
                wide = opened.page.evaluate("() => document.documentElement.scrollWidth")
                seen = [f"it is {wide} pixels wide"] if wide > width else []
                if axe_path() is not None and rules != []:
                    seen += barriers(opened.page, rules)
                if seen:
                    found[f"{path} {width} {scheme}"] = seen
            if path == "/admin/login":
                opened.log_in()
        opened.complaints = [each for each in opened.complaints if "status of 404" not in each]
    assert found == {}
    if axe_path() is None:
        pytest.skip("no axe-core: npm install --no-save axe-core, or LLMGW_AXE names axe.min.js")
