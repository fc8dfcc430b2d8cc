"""Listens to /admin/events as an open page does."""

from __future__ import annotations

import contextlib

from tests.pages.visitor import Visitor


class Listener:
    """What an open page hears."""

    def __init__(self, visitor: Visitor, after: str = "", **headers: str) -> None:
        self._stack = contextlib.ExitStack()
        asked = visitor.http.stream(
            "GET", "/admin/events", params={"after": after} if after else {}, headers=headers, timeout=5
        )
        self.answer = self._stack.enter_context(asked)
        self._lines = self.answer.iter_lines()

    def hear(self) -> tuple[str, str]:
        """(event, data) of the next one; a comment is ("", its words)."""
        event = data = ""
        for line in self._lines:
            name, _, value = line.partition(": ")
            if not name and value:
                return "", value
            event, data = (value, data) if name == "event" else (event, value if name == "data" else data)
            if not line and event:
                return event, data
        return "end", ""

    def close(self) -> None:
        self._stack.close()
