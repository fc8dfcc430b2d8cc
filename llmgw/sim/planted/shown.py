"""Reads what an operator would: the overview page after a real login, and `llmgw ctl status`."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
from html.parser import HTMLParser
from typing import Any

import httpx

from llmgw.config.own_program import own_program
from llmgw.sim.demo_fleet import DemoError, DemoFleet

_LIST_CLASS = "findings"
ANSWER_S_MAX = 30.0


async def overview_items(fleet: DemoFleet) -> list[str]:
    """The texts of the problems at the top of `/admin`, as its list has them; empty when there are none there.

    Raises DemoError when the login fails, or when something else than the problems stands first.
    """
    token = json.loads((fleet.state / "admin.json").read_text())["token"]
    async with httpx.AsyncClient(base_url=fleet.admin, trust_env=False, timeout=ANSWER_S_MAX) as browser:
        form = (await browser.get("/admin/login")).text
        hidden = {name: html.unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)}
        answer = await browser.post("/admin/login", data={**hidden, "token": token})
        if answer.status_code != 303:
            raise DemoError(f"logging in at {fleet.admin}/admin/login failed: {answer.status_code}")
        page = (await browser.get("/admin")).text
    reader = _Problems()
    reader.feed(page)
    if reader.headings_before > 1:
        raise DemoError("the problems are not at the top of /admin")
    return reader.items


async def status_text(fleet: DemoFleet) -> str:
    """What `llmgw ctl status` prints. Raises DemoError when it fails."""
    process = await asyncio.create_subprocess_exec(
        *own_program("ctl", "status"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "LLMGW_STATE": str(fleet.state), "NO_COLOR": "1"},
    )
    out, complaints = await asyncio.wait_for(process.communicate(), ANSWER_S_MAX)
    if process.returncode:
        raise DemoError(f"llmgw ctl status failed: {complaints.decode(errors='replace')}")
    return out.decode()


def item_tells(item: str, finding: dict[str, Any]) -> bool:
    """Whether an item of the page names the finding's place and its remedy, whatever marks stand between."""
    said = _bare(item)
    return _bare(finding["where"]) in said and _bare(finding["remedy"]) in said


def status_tells(text: str, finding: dict[str, Any]) -> bool:
    """The same of `ctl status`: the finding's line, and its remedy among the lines that belong to it."""
    for item in re.split(r"^  (?=(?:ERROR|WARNING|INFO): )", text, flags=re.MULTILINE)[1:]:
        heading, _, rest = item.partition("\n")
        if heading.startswith(f"{finding['severity'].upper()}: {finding['where']}: ") and (
            f"what to do: {finding['remedy']}" in rest
        ):
            return True
    return False


def _bare(text: str) -> str:
    """Without spaces and marks: a page breaks sentences into elements."""
    return re.sub(r"[\s`]", "", text)


class _Problems(HTMLParser):
    """The items of the first list of findings, nested ones as a part of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[str] = []
        self.headings_before = 0
        self._depth = 0
        self._done = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = (dict(attrs).get("class") or "").split()
        if self._depth:
            self._depth += tag == "ul"
            if tag == "li" and self._depth == 1:
                self.items.append("")
        elif not self._done:
            self.headings_before += tag == "h2"
            self._depth = int(tag == "ul" and _LIST_CLASS in classes)

    def handle_endtag(self, tag: str) -> None:
        if self._depth and tag == "ul":
            self._depth -= 1
            self._done = self._depth == 0

    def handle_data(self, data: str) -> None:
        if self._depth and self.items:
            self.items[-1] += data
