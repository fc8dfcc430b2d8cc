"""/admin/usage: what keys and models took in some days, and the same as CSV."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.messages.usage_csv import usage_csv
from llmgw.messages.usage_views import UsageEntry, UsageView
from llmgw.server.admin import border
from llmgw.server.admin.answers import ALWAYS
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.admin.names import model_name
from llmgw.server.pages.changes import SAID
from llmgw.server.pages.handlers import as_page
from llmgw.server.pages.rendering import page
from llmgw.server.pages.request_pages import address

PATH = "/admin/usage"
DAYS_SHOWN = 7
DAYS_MAX = 3660
ROWS_SHOWN_MAX = 500
"""More are in the CSV: nobody reads them, and a page has its weight."""
GROUPS = {
    "day,key,model": "key, model and day",
    "day,model": "model and day",
    "day,key": "key and day",
    "key,model": "key and model",
    "key": "key",
    "model": "model",
    "day": "day",
    "hour,model": "model and hour",
    "hour,key,model": "key, model and hour",
}
WITHOUT_KEY = "(none)"
"""What the form says for requests that came without a key, whose id is empty."""
_DAY = re.compile(r"(19[7-9]|[2-8][0-9]{2})[0-9]-[0-9]{2}-[0-9]{2}")
_PARAMETERS = ("first", "last", "by", "key", "model")


@dataclass(frozen=True, slots=True)
class Asked:
    """Whole days of UTC, the last one included."""

    first: date
    last: date
    by: str
    key: str
    model: str

    @property
    def query(self) -> dict[str, str]:
        """The same as the parameters of an address."""
        named = {"key": self.key, "model": self.model}
        days = {"first": self.first.isoformat(), "last": self.last.isoformat(), "by": self.by}
        return {**days, **{name: value for name, value in named.items() if value}}

    def key_id(self, backend: AdminBackend) -> str | None:
        """The key's id, which is what usage is kept by; empty for requests without one, None for all."""
        if self.key in ("", WITHOUT_KEY):
            return "" if self.key else None
        return {view.name: view.id for view in backend.keys.views()}.get(self.key, self.key)

    def of_api(self, backend: AdminBackend) -> dict[str, str]:
        """The parameters by which the API answers the same."""
        until, key = self.last + timedelta(days=1), self.key_id(backend)
        found = {"from": self.first.isoformat(), "to": until.isoformat(), "by": self.by}
        if key is not None:
            found["key"] = key
        return {**found, "model": self.model} if self.model else found


def usage_routes(backend: AdminBackend) -> list[Route]:
    """The page, and what it links for a spreadsheet."""

    async def usage(request: Request) -> Response:
        asked = read_asked(request, _today())
        view = await _view(backend, asked)
        entries = sorted(view.entries, key=_newest_first)
        names = {key.id: key.name for key in backend.keys.views()}
        return page(
            request,
            "usage.html",
            asked=asked,
            view=view,
            by=asked.by.split(","),
            entries=entries[:ROWS_SHOWN_MAX],
            left_out=len(entries) - len(entries[:ROWS_SHOWN_MAX]),
            names=names,
            groups=GROUPS,
            models=[model.name for model in backend.models()],
            ranges=[(words, address(PATH, query)) for words, query in _ranges(asked)],
            most=max((_tokens(entry) for entry in entries), default=0),
            csv=address(f"{PATH}.csv", asked.query),
            api=address("/api/v1/usage", asked.of_api(backend)),
            without_key=WITHOUT_KEY,
        )

    async def as_csv(request: Request) -> Response:
        asked = read_asked(request, _today())
        view = await _view(backend, asked)
        file = f"llmgw-usage-{asked.first}-{asked.last}.csv"
        headers = {**ALWAYS, "content-disposition": f'attachment; filename="{file}"'}
        # With a mark at its start, by which spreadsheets know that it is UTF-8.
        text = f"\ufeff{usage_csv(view)}".encode(errors="replace")
        return Response(text, headers=headers, media_type="text/csv; charset=utf-8")

    return [
        Route(PATH, as_page(usage), methods=["GET"]),
        Route(f"{PATH}.csv", as_page(as_csv), methods=["GET"]),
    ]


def read_asked(request: Request, today: date) -> Asked:
    """What an address asks for. Raises AdminError(400)."""
    border.only_parameters(request, SAID, *_PARAMETERS)
    # A form sends its empty fields too.
    given = {name: value for name in _PARAMETERS if (value := request.query_params.get(name, "").strip())}
    last = _day(given["last"], "last") if "last" in given else today
    first = _day(given["first"], "first") if "first" in given else last - timedelta(days=DAYS_SHOWN - 1)
    if first > last:
        raise border.bad_request("the first day must not be after the last")
    if (last - first).days >= DAYS_MAX:
        raise border.bad_request(f"that is more than {DAYS_MAX} days")
    by = given.get("by", next(iter(GROUPS)))
    if by not in GROUPS:
        raise border.bad_request(f"usage is not grouped by {by[:40]!r} here; by takes {' or '.join(GROUPS)}")
    return Asked(
        first=first,
        last=last,
        by=by,
        key=border.plain_name(given["key"], "key") if "key" in given else "",
        model=border.plain_name(given["model"], "model") if "model" in given else "",
    )


async def _view(backend: AdminBackend, asked: Asked) -> UsageView:
    return await backend.usage.view(
        from_s=_second(asked.first),
        to_s=_second(asked.last + timedelta(days=1)),
        key=asked.key_id(backend),
        model=model_name(backend, asked.model) if asked.model else None,
        by=asked.by.split(","),
    )


def _ranges(asked: Asked) -> list[tuple[str, dict[str, str]]]:
    today = _today()
    month = today.replace(day=1)
    before = month - timedelta(days=1)
    spans = {
        "today": (today, today),
        "7 days": (today - timedelta(days=6), today),
        "30 days": (today - timedelta(days=29), today),
        "this month": (month, today),
        "last month": (before.replace(day=1), before),
    }
    query = asked.query
    return [
        (words, {**query, "first": first.isoformat(), "last": last.isoformat()})
        for words, (first, last) in spans.items()
    ]


def _newest_first(entry: UsageEntry) -> tuple[int, int, str, str]:
    return (-(entry.at or 0), -_tokens(entry), entry.key or "", entry.model or "")


def _tokens(entry: UsageEntry) -> int:
    return entry.prompt_tokens + entry.completion_tokens


def _today() -> date:
    return datetime.fromtimestamp(time.time(), UTC).date()


def _second(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


def _day(text: str, name: str) -> date:
    try:
        if _DAY.fullmatch(text) is not None:
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise border.bad_request(f"{name} must be a day like 2026-11-29, not {text[:40]!r}")
