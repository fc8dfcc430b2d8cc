"""`llmgw ctl node remove`: drained, forgotten by the server, and its certificates refused by both."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import AdminClient, node_segment, shaped
from llmgw.cli.ctl.failures import RefusedError
from llmgw.cli.ctl.nodes import NODE, wait_until_empty
from llmgw.cli.ctl.options import Ctl, command, note
from llmgw.cli.output import print_json

if TYPE_CHECKING:
    from llmgw.messages.admin import NodeView

node_app = typer.Typer(no_args_is_help=True, help="Remove a node for good.")

# What a drain has left to end on the node's side, after its last replica has gone.
SHARDS_END_S_MAX = 60.0
LOOK_S = 0.5


@command(node_app, "remove")
def remove(
    ctl: Ctl,
    node: NODE,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Stop what cannot be moved; of a node that is not heard, give up what it holds.",
        ),
    ] = False,
    pki: Annotated[
        Path | None,
        typer.Option(
            "--pki",
            metavar="DIR",
            help="The authority's folder, if it is on this host. Default: /etc/llmgw/pki where there is one.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Remove a node for good: drain it, forget it, refuse its certificates. Its history stays.

    One that is lost is removed with what it held, which is rebuilt elsewhere. `llmgw ctl cert issue-client` (or
    `llmgw onboard-node`) lets a node of that name in again.
    """
    from llmgw.messages.admin import NodeView

    with ctl.connect() as api:
        view = shaped(api.get(f"nodes/{node_segment(node)}"), NodeView)
        if not yes:
            _confirm(view)
        if view.state == "ready":
            note(str(api.post(f"nodes/{node_segment(node)}/drain", {"force": force})["message"]))
            wait_until_empty(api, node)
        done = _removed(api, node, force)
    certificate = _revoked(view.node_id, pki)
    if ctl.as_json:
        print_json({**done, "certificate": certificate})
        return
    ctl.show_done(done)
    for sentence in certificate["sentences"]:
        note(sentence)


def _confirm(view: NodeView) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("without a terminal to ask on, removing a node needs --yes")
    runs = f"it runs {cells.listed(view.replicas)}" if view.replicas else "it runs nothing"
    typer.confirm(f"{view.node_id} is {view.state} and {runs}. Remove it?", abort=True, err=True)


def _removed(api: AdminClient, node: str, force: bool) -> dict[str, Any]:
    """The server's answer. Shards end a moment after their replicas have gone, and are waited for."""
    deadline = time.monotonic() + SHARDS_END_S_MAX
    while True:
        try:
            done: dict[str, Any] = api.delete(f"nodes/{node_segment(node)}", **({"force": 1} if force else {}))
        except RefusedError as error:
            if error.code != "not-drained" or time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)
        else:
            return done


def _revoked(node: str, pki: Path | None) -> dict[str, Any]:
    """Have the authority revoke it too, where that is at hand; else say what to type, and where.

    The server refuses the node already; the authority's list says it to every other reader, and after the
    server's state is lost.
    """
    from llmgw.release.layout import PKI

    folder = pki or Path(PKI)
    by_hand = f"llmgw ctl cert revoke {node} --pki {folder}"
    left: dict[str, Any] = {"revoked": False, "serials": [], "list": None, "command": by_hand}
    if not os.path.lexists(folder / "ca-key.pem") and not _closed(folder):
        why = "the authority is not on this host" if pki is None else f"there is no authority in {folder}"
        return {**left, "sentences": [f"{why}: on the host that has it, run {by_hand}"]}

    from llmgw.pki.authority import Authority
    from llmgw.pki.errors import PkiError

    try:
        done = Authority.open(folder).revoke(node, time.time())
        path = Authority.open(folder).revocations_path
    except PkiError as error:
        return {**left, "sentences": [f"warning: it is not revoked in {folder}: {error} Then run {by_hand}"]}
    count = len(done.serials) or "no further"
    said = f"revoked in {folder}: {count} serial{'' if count == 1 else 's'}"
    copy = f"the list is {path}; if the server reads a copy, copy it there (no restart)"
    return {
        "revoked": True,
        "serials": done.serials,
        "list": str(path),
        "command": None,
        "sentences": [said, copy],
    }


def _closed(folder: Path) -> bool:
    """True for a folder that is there, and that this user may not look into."""
    return folder.is_dir() and not os.access(folder, os.X_OK)
