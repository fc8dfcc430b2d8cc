"""`llmgw ctl upgrade`: roll the agents over to a signed release, node by node."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import AdminClient, node_segment, segment, shaped
from llmgw.cli.ctl.failures import AwayError, RefusedError
from llmgw.cli.ctl.options import Ctl, command, note
from llmgw.cli.ctl.patience import Patience
from llmgw.cli.errors import EXIT_INTERRUPTED
from llmgw.cli.output import Column, format_age, plain, print_table
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.messages.upgrade_views import NodeUpgrade, UpgradeView

app = typer.Typer()

EXIT_NOT_ALL = 1
# The server answers at the latest after this long; a roll without change is no roll without progress.
WAIT_S = 20
TOLD_EVERY_S = 5.0

TO = Annotated[
    Path | None,
    typer.Option(
        "--to", metavar="FILE", help="A file of a release, with FILE.sig beside it.", show_default=False
    ),
]
NODES = Annotated[
    list[str] | None,
    typer.Option(
        "--nodes", metavar="NODE,…", help="Only these, in this order. Default: all, by name.", show_default=False
    ),
]
DOWNGRADE = Annotated[bool, typer.Option("--allow-downgrade", help="Also to an older version than runs there.")]
WITHIN = Annotated[
    int | None,
    typer.Option(
        "--back-within",
        metavar="SECONDS",
        min=1,
        max=3600,
        help="How long a node may take to be back with all its engines. Default: 180.",
        show_default=False,
    ),
]
STATUS = Annotated[bool, typer.Option("--status", help="Say how the last upgrade stands.")]
CANCEL = Annotated[bool, typer.Option("--cancel", help="Begin with no further node.")]
FOLLOW = Annotated[
    bool | None,
    typer.Option("--follow/--no-follow", help="Stay until its end. Default with --to, not with --status."),
]


@command(app, "upgrade")
def upgrade(
    ctl: Ctl,
    to: TO = None,
    nodes: NODES = None,
    allow_downgrade: DOWNGRADE = False,
    back_within: WITHIN = None,
    status: STATUS = False,
    cancel: CANCEL = False,
    follow: FOLLOW = None,
) -> None:
    """Upgrade the agents to a signed release, one node after the other; engines and requests go on.

    Each agent proves the file with its own key. The roll stops at the first node that is not back with all its
    engines. It runs in the server: Ctrl-C only stops looking. Exit 0: every node runs the release, 1: not all do.
    """
    if sum((to is not None, status, cancel)) != 1:
        raise typer.BadParameter("give one of --to FILE, --status and --cancel")
    if to is None and (nodes or allow_downgrade or back_within is not None):
        raise typer.BadParameter("--nodes, --allow-downgrade and --back-within go with --to FILE")
    with ctl.connect() as api:
        if cancel:
            ctl.show_done(api.delete("upgrades/last"))
            return
        if to is None:
            view = _read(api.get("upgrades/last"))
        else:
            view = _start(api, to, _node_list(nodes or []), allow_downgrade, back_within)
        if follow if follow is not None else to is not None:
            view = _follow(api, view)
    ctl.show(view, lambda _: _print(view))
    if view.state != "running" and not _all_good(view):
        raise typer.Exit(EXIT_NOT_ALL)


def _node_list(given: list[str]) -> list[str]:
    names = [node_segment(name.strip()) for words in given for name in words.split(",") if name.strip()]
    if given and not names:
        # Such as of a variable of the shell that was not set: not all nodes.
        raise typer.BadParameter("--nodes names no node; leave it out to upgrade all")
    return names


def _start(
    api: AdminClient, path: Path, nodes: list[str], allow_downgrade: bool, back_within: int | None
) -> UpgradeView:
    """Send the file and begin the roll. Raises SentenceError before anything is sent, where that can be known."""
    from llmgw.messages.upgrade import RELEASE_BYTES_MAX
    from llmgw.release.files import ReleaseError, read_name
    from llmgw.release.signature import digest

    release = read_name(path.name)
    beside = path.with_name(f"{path.name}.sig")
    try:
        size = path.stat().st_size
        if size > RELEASE_BYTES_MAX:
            raise ReleaseError(f"{path} has more than {RELEASE_BYTES_MAX} bytes, which no release has")
        sha256 = digest(path).hex()
    except OSError as error:
        raise ReleaseError(f"{path} cannot be read: {error.strerror}") from None
    try:
        signature = beside.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise ReleaseError(
            f"{beside} is not there, and agents take only what is signed; get it from where {path.name} came from"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReleaseError(f"{beside} cannot be read: {error}") from None
    sending = _Sending(path.name, size)
    api.put_file(f"releases/{sha256}", path, sending.told)
    wish: dict[str, Any] = {
        "name": release.name,
        "sha256": sha256,
        "signature": signature,
        "nodes": nodes,
        "allow_downgrade": allow_downgrade,
        **({} if back_within is None else {"back_within_s": back_within}),
    }
    return _read(api.post("upgrades", wish))


class _Sending:
    """Says now and then how much of a file has been sent."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._said_at = time.monotonic()

    def told(self, sent: int) -> None:
        if time.monotonic() - self._said_at >= TOLD_EVERY_S:
            self._said_at = time.monotonic()
            note(f"{self._name}: {100 * sent // self._size} % sent to the server")


def _follow(api: AdminClient, view: UpgradeView) -> UpgradeView:
    """Stay with the roll to its end, over restarts of the server."""
    patience, told = Patience(), _Told()
    count = len(view.nodes)
    note(f"upgrading {count} node{'' if count == 1 else 's'} to llmgw {view.version} (upgrade {view.id})")
    try:
        while True:
            told.news(view)
            if view.state != "running":
                return view
            seen = view.change
            path = f"upgrades/{segment(view.id)}"
            view = _read(patience.ask(lambda: api.get(path, seen=seen, wait=WAIT_S), lambda: False))  # noqa: B023
    except KeyboardInterrupt:
        note(
            "the upgrade goes on in the server: llmgw ctl upgrade --status --follow looks again, "
            "llmgw ctl upgrade --cancel begins with no further node"
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except (AwayError, RefusedError) as error:
        raise SentenceError(
            f"{error}; the upgrade goes on with the server: llmgw ctl upgrade --status says how it stands"
        ) from None


class _Told:
    """What was said of the progress, so that nothing is said twice."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def news(self, view: UpgradeView) -> None:
        over = 0
        for node in view.nodes:
            words = _progress(node, view)
            over += node.state not in ("waiting", "preparing", "restarting")
            if node.state != "waiting" and self._said.get(node.node) != words:
                self._said[node.node] = words
                note(plain(f"[{over or 1} of {len(view.nodes)}] {node.node}: {words}"))


def _progress(node: NodeUpgrade, view: UpgradeView) -> str:
    if node.state == "preparing":
        if node.stage == "downloading" and node.done_bytes is not None:
            # In quarters: a line a second is read by nobody.
            share = 25 * (4 * node.done_bytes // max(1, view.size_bytes))
            return f"downloading, {share} %" if sys.stderr.isatty() or share in (0, 100) else "downloading"
        return node.stage or "asked"
    if node.state == "restarting":
        return f"switched, waiting for it to be back as llmgw {view.version}"
    if node.state == "upgraded":
        count = len(node.engines)
        engines = {0: "no engine was running", 1: "its engine went on"}.get(count, f"all {count} engines went on")
        return f"upgraded from llmgw {node.was} to {view.version}, {engines}"
    return f"{_WORDS.get(node.state, node.state)}{': ' + node.reason if node.reason else ''}"


_WORDS = {"unchanged": "runs this release already", "back": "went back"}


def _print(view: UpgradeView) -> None:
    print_table(
        ["node", Column("state", state=True), "was", "notes"],
        [[node.node, node.state, cells.text(node.was), cells.text(_progress(node, view))] for node in view.nodes],
    )
    good = sum(node.state in ("upgraded", "unchanged") for node in view.nodes)
    age = "" if view.ended_at is None else f" after {format_age(view.ended_at - view.started_at)}"
    print(f"llmgw {view.version}: {good} of {len(view.nodes)} nodes; the upgrade {view.id} is {view.state}{age}")
    if view.reason:
        print(plain(view.reason))
    if view.state == "running" and view.cancelled_by is not None:
        print(plain(f"cancelled by {view.cancelled_by}: the node that has begun is let finish"))


def _all_good(view: UpgradeView) -> bool:
    from llmgw.messages.upgrade_views import GOOD

    return all(node.state in GOOD for node in view.nodes)


def _read(value: Any) -> UpgradeView:
    from llmgw.messages.upgrade_views import UpgradeView

    return shaped(value, UpgradeView)
