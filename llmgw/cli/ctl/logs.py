"""`llmgw ctl logs`: what an engine wrote, from anywhere."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.ctl.client import AdminClient, segment, server_view, shaped
from llmgw.cli.ctl.failures import RefusedError
from llmgw.cli.ctl.options import Ctl, command, note
from llmgw.cli.ctl.patience import Patience
from llmgw.cli.ctl.replicas import REPLICA, resolve_ended

if TYPE_CHECKING:
    from llmgw.messages.admin import LogView

app = typer.Typer()

POLL_S = 0.5
LINES_MAX = 10_000
# Everything that could move a cursor or retitle a terminal, but not colours (ECMA-48: CSI … m).
_UNSAFE = re.compile(r"\x1b(?!\[[0-9;:]*m)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")


@command(app, "logs")
def logs(
    ctl: Ctl,
    replica: REPLICA,
    rank: Annotated[int, typer.Option("--rank", min=0, max=255, help="Which shard; 0 is the leader.")] = 0,
    stream: Annotated[
        str, typer.Option("--stream", metavar="NAME", help="The engine's output, or a sidecar's by its name.")
    ] = "engine",
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=LINES_MAX, help="How many last lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the shard is over.")] = False,
) -> None:
    """Show the output of a replica's engine."""
    with ctl.connect() as api:
        name = resolve_ended(api, replica)
        path = f"replicas/{segment(name)}/logs"
        value = api.get(path, rank=rank, stream=stream, lines=lines)
        if not follow:
            ctl.show(value, _print_text)
        else:
            _follow(ctl, api, path, rank, stream, value)


def _follow(ctl: Ctl, api: AdminClient, path: str, rank: int, stream: str, value: Any) -> None:
    """Print what comes, over restarts of the server, until the shard is over or forgotten."""
    from llmgw.messages.admin import LogView

    patience = Patience()
    while True:
        view = shaped(value, LogView)
        _print_part(ctl, value, view)
        if view.shard_over and not view.text:
            return
        if not view.text:
            time.sleep(POLL_S)
        offset = view.next_offset
        try:
            value = patience.ask(
                lambda offset=offset: api.get(path, rank=rank, stream=stream, offset=offset),  # type: ignore[misc]
                lambda: server_view(api).settling,
            )
        except RefusedError as error:
            if error.status != 404:
                raise
            note("the replica is gone; there is nothing more to follow")
            return
        missed = shaped(value, LogView).offset - offset
        if missed > 0:
            note(f"{missed} bytes of output were rotated away before they could be read")


def _print_part(ctl: Ctl, value: Any, view: LogView) -> None:
    if not view.text:
        return
    if ctl.as_json:
        import msgspec

        # One part a line, for programs that read while it grows.
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    else:
        _write(view.text)
    sys.stdout.flush()


def _print_text(value: Any) -> None:
    from llmgw.messages.admin import LogView

    _write(shaped(value, LogView).text)


def _write(text: str) -> None:
    sys.stdout.write(_UNSAFE.sub("", text) if sys.stdout.isatty() else text)
