"""`llmgw ctl token create|list|revoke`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import segment, shaped
from llmgw.cli.ctl.options import Ctl, command, note
from llmgw.cli.output import print_json, print_table

if TYPE_CHECKING:
    from llmgw.messages.admin import TokenView

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke admin tokens.")

NAME = Annotated[str, typer.Argument(metavar="NAME", help="Whose, or what for: it stands in the history.")]


@command(app, "create")
def create(ctl: Ctl, name: NAME) -> None:
    """Make an admin token and print it, this once."""
    from llmgw.messages.admin import NewToken

    with ctl.connect() as api:
        value = api.post("tokens", {"name": name})
        if ctl.as_json:
            print_json(value)
            return
        # The token alone on stdout, so that it can go into a file.
        print(shaped(value, NewToken).token)
        note("keep it: it is stored hashed and cannot be shown again")


@command(app, "list")
def list_tokens(ctl: Ctl) -> None:
    """Show the admin tokens' names."""
    from llmgw.messages.admin import TokenView

    with ctl.connect() as api:
        ctl.show(api.get("tokens"), lambda value: _print_tokens(shaped(value, list[TokenView])))


@command(app, "revoke")
def revoke(ctl: Ctl, name: NAME) -> None:
    """Make an admin token worthless, at once."""
    with ctl.connect() as api:
        ctl.show_done(api.delete(f"tokens/{segment(name)}"))


def _print_tokens(views: list[TokenView]) -> None:
    rows = [[view.name, cells.local_time(view.created_at), cells.local_time(view.last_used_at)] for view in views]
    print_table(["token", f"created ({cells.time_zone()})", "last used"], rows)
