"""A browser without a screen: follows forms and keeps cookies as one does."""

from __future__ import annotations

import html
import re
import ssl

import httpx

from tests.ctl.scripted import TOKEN


class Visitor:
    """One person at one browser."""

    def __init__(self, url: str, verify: ssl.SSLContext | bool = False) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, trust_env=False, verify=verify)

    def field(self, page: str, name: str) -> str:
        """The value of a hidden field."""
        found = re.search(rf'name="{name}" value="([^"]*)"', page)
        assert found is not None, page
        return html.unescape(found[1])

    def log_in(self, token: str = TOKEN, onward: str = "/admin", **headers: str) -> httpx.Response:
        """Opens the form and sends it."""
        page = self.http.get("/admin/login", params={"next": onward}).text
        form = {"token": token, "proof": self.field(page, "proof"), "next": self.field(page, "next")}
        return self.http.post("/admin/login", data=form, headers=headers)

    def csrf(self) -> str:
        """What this session's pages send with a change."""
        return self.field(self.http.get("/admin").text, "csrf")


def words(page: str) -> str:
    """What is read of a page's content, spaces made one."""
    main = page[page.index("<main") : page.index("</main>")]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main)).split())
