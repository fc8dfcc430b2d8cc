"""`llmgw ctl requests`: the last requests, what became of each, and why."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import AdminClient, server_view, shaped
from llmgw.cli.ctl.completion import every_model_name, key_names, replica_names
from llmgw.cli.ctl.options import Ctl, command
from llmgw.cli.ctl.patience import Patience
from llmgw.cli.output import Column, plain, print_table

if TYPE_CHECKING:
    from llmgw.messages.recent_views import RequestView

app = typer.Typer()

POLL_S = 1.0
PAGE_MAX = 1000
FAILED = "failed"


@command(app, "requests")
def requests(
    ctl: Ctl,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Only this model's.", autocompletion=every_model_name),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="NAME", help="Only this API key's.", autocompletion=key_names),
    ] = None,
    replica: Annotated[
        str | None,
        typer.Option(
            "--replica",
            metavar="ID",
            help="Only those that this replica (or static endpoint) answered, or was asked last.",
            autocompletion=replica_names,
        ),
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="CODE", help="Only these: 503, or a class such as 5xx.")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that were not answered with 2xx.")] = False,
    request_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Only those that clients know by this x-request-id."),
    ] = None,
    before: Annotated[
        int | None, typer.Option("--before", metavar="N", min=1, help="Only what is older than this one.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=PAGE_MAX, help="How many.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as requests end, until Ctrl-C.")] = False,
) -> None:
    """Show the last requests, newest first: who asked, what answered, how long it took, and why it failed."""
    if failed and status is not None:
        raise typer.BadParameter("contradict each other; give one of them", param_hint="--failed and --status")
    if follow and before is not None:
        raise typer.BadParameter("contradict each other; give one of them", param_hint="--follow and --before")
    asked = {
        "model": model,
        "key": key,
        "endpoint": replica,
        "status": FAILED if failed else status,
        "id": request_id,
    }
    with ctl.connect() as api:
        value = api.get("requests", **asked, before=before, limit=limit)
        if follow:
            _follow(ctl, api, asked, value)
        else:
            ctl.show(value, lambda value: _print_table(_views(value)))


def _views(value: Any) -> list[RequestView]:
    from llmgw.messages.recent_views import RequestView

    return shaped(value, list[RequestView])


def _print_table(views: list[RequestView]) -> None:
    columns: list[str | Column] = [
        Column("n", spare=3),
        f"ended ({cells.time_zone()})",
        "status",
        "model",
        Column("replica", spare=1),
        Column("key", spare=2),
        Column("queue", right=True, spare=5),
        Column("ttft", right=True, spare=4),
        Column("total", right=True),
        Column("in", right=True, spare=6),
        Column("out", right=True, spare=6),
        Column("request id", spare=7),
        "why",
    ]
    print_table(columns, [_row(view) for view in views], empty="no request that is still known is like that")


def _row(view: RequestView) -> list[str]:
    return [
        str(view.id),
        cells.local_time(view.at),
        str(view.status),
        cells.text(view.model),
        cells.text(view.endpoint),
        cells.text(view.key),
        _seconds(view.queued_s or None),
        _seconds(view.first_byte_s),
        _seconds(view.total_s if view.model else None),
        _count(view.prompt_tokens, estimated=False),
        _count(view.completion_tokens, estimated=view.estimated),
        cells.text(view.request_id),
        cells.text(why(view)),
    ]


def why(view: RequestView) -> str:
    """Why it failed or was tried again; empty when neither."""
    parts = [f"{view.endpoint} itself answered {view.status}" if view.passed_on else view.error or ""]
    if view.retried_because:
        parts.append(f"tried again since {view.retried_because}")
    if view.retry_refused:
        parts.append("no other engine was asked: the model's retry budget was spent")
    return "; ".join(part for part in parts if part)


def _seconds(value_s: float | None) -> str:
    return cells.NONE if value_s is None else f"{value_s:.3f}s" if value_s < 10 else f"{value_s:.1f}s"


def _count(tokens: int | None, *, estimated: bool) -> str:
    return cells.NONE if tokens is None else f"{'~' if estimated else ''}{tokens}"


def _follow(ctl: Ctl, api: AdminClient, asked: dict[str, str | None], value: Any) -> None:
    """Print what ends, the oldest first, over restarts of the server."""
    patience = Patience()
    # Numbers begin anew with a server; times do not, and what came at one moment came in one piece.
    seen_at = 0.0
    while True:
        for told, view in reversed(list(zip(value, _views(value), strict=True))):
            seen_at = max(seen_at, view.at)
            _print_line(ctl, told, view)
        sys.stdout.flush()
        time.sleep(POLL_S)
        value = patience.ask(lambda: _since(api, asked, seen_at), lambda: server_view(api).settling)  # noqa: B023


def _since(api: AdminClient, asked: dict[str, str | None], seen_at: float) -> list[Any]:
    """What ended after that, the newest first."""
    found: list[Any] = []
    before: int | None = None
    limit = 100
    while True:
        page = api.get("requests", **asked, before=before, limit=limit)
        views = _views(page)
        fresh = [told for told, view in zip(page, views, strict=True) if view.at > seen_at]
        found += fresh
        if len(fresh) < limit:
            return found
        before, limit = views[-1].id, PAGE_MAX


def _print_line(ctl: Ctl, told: Any, view: RequestView) -> None:
    if ctl.as_json:
        import msgspec

        # One a line, for programs that read while more come.
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        return
    out = _count(view.completion_tokens, estimated=view.estimated)
    parts = [
        cells.local_time(view.at),
        str(view.status),
        cells.text(view.model),
        cells.text(view.endpoint),
        cells.text(view.key),
        f"ttft {_seconds(view.first_byte_s)}",
        f"total {_seconds(view.total_s)}",
        f"tokens {_count(view.prompt_tokens, estimated=False)}+{out}",
        *([f"queue {_seconds(view.queued_s)}"] if view.queued_s else []),
        why(view),
    ]
    sys.stdout.write(plain("  ".join(part for part in parts if part)) + "\n")
