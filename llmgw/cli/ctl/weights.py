"""What lies on the nodes' disks: `llmgw ctl models --on-disk`, and `--remove-unused`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import AdminClient, shaped
from llmgw.cli.ctl.options import Ctl, note
from llmgw.cli.output import Column, plain, print_json, print_table
from llmgw.config.errors import SentenceError
from llmgw.config.sizes import size_words

if TYPE_CHECKING:
    from llmgw.messages.admin import NodeWeightsView, WeightsFileView


def show_on_disk(ctl: Ctl, api: AdminClient, node: str | None) -> None:
    """Print what lies in the weights folders, of all nodes or of one."""
    from llmgw.messages.admin import NodeWeightsView

    value = api.get("weights", node=node)
    ctl.show(value, lambda value: _print(shaped(value, list[NodeWeightsView])))


def remove_unused(ctl: Ctl, api: AdminClient, node: str | None, yes: bool) -> None:
    """Show what nothing refers to, ask, and have the nodes remove it."""
    from llmgw.messages.admin import NodeWeightsView

    views = shaped(api.get("weights", node=node), list[NodeWeightsView])
    for view in views:
        _note_problem(view)
    unused = {view.node: [file for file in view.files if file.unused] for view in views}
    unused = {node_id: files for node_id, files in unused.items() if files}
    if not unused:
        _show_removed(ctl, {"message": "there is nothing to remove", "removed": {}, "warnings": []})
        return
    if not yes:
        _ask(unused)
    names = {node_id: [file.name for file in files] for node_id, files in unused.items()}
    _show_removed(ctl, api.post("weights/remove", {"files": names}))


def _ask(unused: dict[str, list[WeightsFileView]]) -> None:
    """Raises a SentenceError when nobody can be asked, and typer.Abort for a no."""
    size = size_words(sum(file.size_bytes for files in unused.values() for file in files))
    count = sum(map(len, unused.values()))
    for node_id, files in unused.items():
        for file in files:
            note(f"{node_id}: {plain(file.name)} ({size_words(file.size_bytes)}, {plain(file.state)})")
    if not sys.stdin.isatty():
        raise SentenceError(
            f"{count} files ({size}) would be removed, and nobody can be asked here; repeat with --yes"
        )
    typer.confirm(f"Remove {count} files, {size}?", abort=True, err=True)


def _show_removed(ctl: Ctl, value: dict[str, Any]) -> None:
    from llmgw.messages.admin import RemovedWeights

    if ctl.as_json:
        print_json(value)
        return
    done = shaped(value, RemovedWeights)
    print(plain(done.message))
    for node_id, names in done.removed.items():
        for name in names:
            print(f"  {plain(node_id)}: {plain(name)}")
    for warning in done.warnings:
        note(f"warning: {plain(warning)}")


def _print(views: list[NodeWeightsView]) -> None:
    rows = [
        [
            view.node,
            _size(file),
            "not llmgw's" if file.state == "foreign" else cells.text(file.state),
            _users(file),
            cells.text(file.name),
        ]
        for view in views
        for file in view.files
    ]
    print_table(
        ["node", Column("size", right=True), "state", "used by", "file"],
        rows,
        empty="no weights lie on these nodes",
    )
    for view in views:
        if view.problem is None and view.disk_bytes is not None and view.disk_free_bytes is not None:
            free = f"{size_words(view.disk_free_bytes)} of {size_words(view.disk_bytes)} free"
            print(f"{view.node}: {cells.text(view.dir)}: {free}")
        if view.left_out:
            note(f"{view.node}: {view.left_out} more files are not shown")
        _note_problem(view)


def _note_problem(view: NodeWeightsView) -> None:
    if view.problem is not None:
        note(f"warning: {plain(view.problem)}")


def _size(file: WeightsFileView) -> str:
    if file.state == "partial" and file.total_bytes:
        return f"{size_words(file.size_bytes)} of {size_words(file.total_bytes)}"
    return size_words(file.size_bytes)


def _users(file: WeightsFileView) -> str:
    if file.unused:
        return "nothing"
    return cells.listed([*file.models, *(f"shard {shard}" for shard in file.shards)])
