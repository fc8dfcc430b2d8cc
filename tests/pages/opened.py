"""A page in a browser, and everything that it complained of or asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.ctl.scripted import TOKEN, ServedAdmin
from tests.pages.chromium import WAIT_S


class Opened:
    """One browser context with one page. Leaving it, nothing may have been complained of, and nothing asked of
    another host."""

    def __init__(self, browser: Any, served: ServedAdmin, path: str = "", **context: Any) -> None:
        self.served = served
        self.context = browser.new_context(**{"viewport": {"width": 1600, "height": 950}, **context})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        self.page.on("request", lambda request: self.asked.append(request.url))
        if path:
            self.go(path)
            self.log_in()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        complaints = list(self.complaints)
        self.context.close()
        if kind is None:
            assert complaints == []
            assert [url for url in self.asked if not url.startswith(self.served.url)] == []

    def go(self, path: str) -> None:
        """Opens an address of the server."""
        self.page.goto(self.served.url + path)

    def log_in(self) -> None:
        """Through the form that is open."""
        self.page.fill("#token", TOKEN)
        self.page.click("button.main")
        self.page.wait_for_selector("form.who")

    def until(self, asked: Callable[[], Any], what: str) -> None:
        """Asks until the answer is true, while the browser's own events are taken."""
        deadline = time.monotonic() + WAIT_S
        while not asked():
            assert time.monotonic() < deadline, f"{what}: not within {WAIT_S:g} s"
            self.page.wait_for_timeout(20)

    def ask(self, script: str, argument: Any = None) -> Any:
        """The value of a function's body in the page."""
        return self.page.evaluate(f"async (it) => {{ {script} }}", argument)
