"""The Chromium that is installed, without a screen: for tests of pages, and for the bench of the drawing."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.ctl.scripted import TOKEN
from tests.patience import PATIENCE

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WAIT_S = 20.0 * PATIENCE


def chromium_path() -> str | None:
    """Where Chromium is; `LLMGW_CHROMIUM` says it otherwise."""
    return os.environ.get("LLMGW_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser. While it is open, this thread has a running event loop: no `asyncio.run` beside it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def log_in(page: Any, url: str, path: str) -> None:
    """Goes to a page, and through the login form on the way."""
    page.goto(url + path)
    page.fill("#token", TOKEN)
    page.click("button.main")
    page.wait_for_url(url + path)


def open_drawing(page: Any) -> None:
    """Waits for the drawing of a page that is open, and gives it the name `drawing` for scripts of tests."""
    page.wait_for_selector("#legend span", state="attached")
    # The module is there already: this only gives its own instance a name.
    page.evaluate(
        "async () => {"
        " const found = await import(document.querySelector('script[src$=\"drawing/main.js\"]').src);"
        " window.drawing = found.drawing; }"
    )


def until(asked: Callable[[], Any], what: str) -> Any:
    """Asks until the answer is true."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        answer = asked()
        if answer:
            return answer
        time.sleep(0.03)
    raise AssertionError(f"{what}: not within {WAIT_S:g} s")


def keep_screenshot(page: Any, folder: Path, name: str) -> None:
    """Into the folder that `LLMGW_SCREENSHOTS` names, else into `folder`."""
    kept = Path(os.environ.get("LLMGW_SCREENSHOTS") or folder)
    kept.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=kept / f"{name}.png")
