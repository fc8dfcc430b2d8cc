"""`llmgw ctl keys create|list|limit|revoke`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import segment, shaped
from llmgw.cli.ctl.expiry import parse_expiry
from llmgw.cli.ctl.options import Ctl, command, note
from llmgw.cli.output import Column, print_json, print_table
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.messages.admin_keys import KeyView

app = typer.Typer(no_args_is_help=True, help="Make, list, limit and revoke API keys of the model API.")

NAME = Annotated[str, typer.Argument(metavar="NAME", help="Whose, or what for: it stands in lists and history.")]
KEY = Annotated[str, typer.Argument(metavar="NAME", help="The key's name, or what the key itself begins with.")]
MODELS = Annotated[
    list[str] | None,
    typer.Option("--models", metavar="A,B", help="The only models that it may ask for. Default: all."),
]
ALL_MODELS = Annotated[bool, typer.Option("--all-models", help="It may ask for every model.")]
REQUESTS = Annotated[
    str | None,
    typer.Option("--requests-per-minute", metavar="N", help="Of all routers together; none: no limit."),
]
TOKENS = Annotated[
    str | None,
    typer.Option("--tokens-per-minute", metavar="N", help="Prompt and answer together; none: no limit."),
]
CONCURRENCY = Annotated[
    str | None, typer.Option("--concurrency", metavar="N", help="Requests at a time; none: no limit.")
]
PRIORITY = Annotated[
    int | None,
    typer.Option(
        "--priority", metavar="P", help="Requests of a higher one leave a queue first.", show_default="0"
    ),
]
EXPIRES = Annotated[
    str | None,
    typer.Option(
        "--expires", metavar="WHEN", help="30d, 12h, 2027-01-31 or 2027-01-31T18:00; never: not at all."
    ),
]


class KeyOptionError(SentenceError):
    """An option that means nothing."""

    exit_code = 2


@command(app, "create")
def create(
    ctl: Ctl,
    name: NAME,
    models: MODELS = None,
    requests_per_minute: REQUESTS = None,
    tokens_per_minute: TOKENS = None,
    concurrency: CONCURRENCY = None,
    priority: PRIORITY = None,
    expires: EXPIRES = None,
) -> None:
    """Make an API key and print it, this once."""
    from llmgw.messages.admin_keys import NewKey

    wish = _rules(models, requests_per_minute, tokens_per_minute, concurrency, priority, expires)
    with ctl.connect() as api:
        value = api.post("keys", {"name": name, **wish})
        if ctl.as_json:
            print_json(value)
            return
        # The key alone on stdout, so that it can go into a file.
        print(shaped(value, NewKey).key)
        note("keep it: it is stored hashed and cannot be shown again")


@command(app, "list")
def list_keys(ctl: Ctl) -> None:
    """Show the API keys: what they begin with, what they may do, and when they were last used."""
    from llmgw.messages.admin_keys import KeyView

    with ctl.connect() as api:
        ctl.show(api.get("keys"), lambda value: _print_keys(shaped(value, list[KeyView])))


@command(app, "limit")
def limit(
    ctl: Ctl,
    name: KEY,
    models: MODELS = None,
    all_models: ALL_MODELS = False,
    requests_per_minute: REQUESTS = None,
    tokens_per_minute: TOKENS = None,
    concurrency: CONCURRENCY = None,
    priority: PRIORITY = None,
    expires: EXPIRES = None,
) -> None:
    """Change what an API key may do, at once. What is not named stays as it is."""
    wish = _rules(models, requests_per_minute, tokens_per_minute, concurrency, priority, expires)
    if all_models:
        if models:
            raise KeyOptionError("--models and --all-models contradict each other; give one of them")
        wish["models"] = None
    if not wish:
        raise KeyOptionError(
            "nothing was named that should change; give --models, --all-models, --requests-per-minute, "
            "--tokens-per-minute, --concurrency, --priority or --expires"
        )
    with ctl.connect() as api:
        ctl.show_done(api.post(f"keys/{segment(name)}/limit", wish))


@command(app, "revoke")
def revoke(ctl: Ctl, name: KEY) -> None:
    """Make an API key worthless, at once. Requests that run go on to their end."""
    with ctl.connect() as api:
        ctl.show_done(api.delete(f"keys/{segment(name)}"))


def _rules(
    models: list[str] | None,
    requests_per_minute: str | None,
    tokens_per_minute: str | None,
    concurrency: str | None,
    priority: int | None,
    expires: str | None,
) -> dict[str, Any]:
    """What was given, as the admin API takes it. Raises SentenceError."""
    wish: dict[str, Any] = {}
    if models is not None:
        names = [name.strip() for each in models for name in each.split(",")]
        if not all(names):
            raise KeyOptionError("--models: a name is empty; write for example --models chat,embed")
        wish["models"] = names
    for option, text in (
        ("requests-per-minute", requests_per_minute),
        ("tokens-per-minute", tokens_per_minute),
        ("concurrency", concurrency),
    ):
        if text is not None:
            wish[option.replace("-", "_")] = _number(option, text)
    if priority is not None:
        wish["priority"] = priority
    if expires is not None:
        wish["expires_at"] = None if expires.strip() == "never" else parse_expiry(expires, time.time())
    return wish


def _number(option: str, text: str) -> int | None:
    if text.strip() == "none":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 12 or int(text) == 0:
        raise KeyOptionError(f"--{option}: {text[:40]!r} is neither a whole number from 1 up nor none")
    return int(text)


def _print_keys(views: list[KeyView]) -> None:
    rows = [
        [
            view.name,
            f"{view.prefix}-…",
            view.requests_per_minute,
            view.tokens_per_minute,
            view.concurrency,
            view.priority or None,
            cells.local_time(view.last_used_at),
            "expired" if view.expired else cells.local_time(view.expires_at),
            "all" if view.models is None else cells.listed(view.models),
        ]
        for view in views
    ]
    columns: list[str | Column] = [
        "key",
        "begins with",
        Column("req/min", right=True),
        Column("tokens/min", right=True),
        Column("at a time", right=True),
        Column("priority", right=True, spare=1),
        Column(f"last used ({cells.time_zone()})", spare=2),
        Column("expires", state=True),
        "models",
    ]
    print_table(columns, rows, empty="there are no API keys; llmgw ctl keys create NAME makes one")
