"""`llmgw ctl nodes`, `cordon`, `uncordon`, `drain`, `undrain`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import AdminClient, node_segment, server_view, shaped
from llmgw.cli.ctl.completion import node_names
from llmgw.cli.ctl.options import Ctl, command, note
from llmgw.cli.ctl.patience import Patience
from llmgw.cli.output import Column, format_age, print_table
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.messages.admin import NodeView

app = typer.Typer()

CERTIFICATE_SOON_S = 14 * 86400.0
DRAIN_POLL_S = 0.5
# How many looks in a row must find nothing but the unmovable before a drain counts as stuck.
STUCK_LOOKS = 4

NODE = Annotated[
    str, typer.Argument(metavar="NODE", help="The node's id: its host name.", autocompletion=node_names)
]


@command(app, "nodes")
def nodes(
    ctl: Ctl,
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", help="Only this node, in full.", autocompletion=node_names)
    ] = None,
) -> None:
    """Show the nodes: state, GPUs, fabrics, and what is wrong with them."""
    from llmgw.messages.admin import NodeView

    with ctl.connect() as api:
        if node is None:
            server = "" if ctl.as_json else server_view(api).version
            ctl.show(api.get("nodes"), lambda value: _print_nodes(shaped(value, list[NodeView]), server))
        else:
            ctl.show(api.get(f"nodes/{node_segment(node)}"), lambda value: _print_node(shaped(value, NodeView)))


@command(app, "cordon")
def cordon(ctl: Ctl, node: NODE) -> None:
    """Place nothing new on a node; what runs there stays."""
    with ctl.connect() as api:
        ctl.show_done(api.post(f"nodes/{node_segment(node)}/cordon"))


@command(app, "uncordon")
def uncordon(ctl: Ctl, node: NODE) -> None:
    """Place on a node again."""
    with ctl.connect() as api:
        ctl.show_done(api.post(f"nodes/{node_segment(node)}/uncordon"))


@command(app, "drain")
def drain(
    ctl: Ctl,
    node: NODE,
    force: Annotated[
        bool, typer.Option("--force", help="Stop what cannot be moved, and wait for no replacement.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when nothing is left on the node.")] = False,
) -> None:
    """Move everything away from a node: each replacement is ready before its original stops."""
    with ctl.connect() as api:
        ctl.show_done(api.post(f"nodes/{node_segment(node)}/drain", {"force": force}))
        if wait:
            wait_until_empty(api, node)


@command(app, "undrain")
def undrain(ctl: Ctl, node: NODE) -> None:
    """Take a drain back."""
    with ctl.connect() as api:
        ctl.show_done(api.post(f"nodes/{node_segment(node)}/undrain"))


def wait_until_empty(api: AdminClient, node: str) -> None:
    """Return when no replica is left on the node; raise when the drain is taken back or cannot go on."""
    from llmgw.messages.admin import NodeView

    patience, started, said, stuck = Patience(), time.monotonic(), "", 0
    while True:
        value = patience.ask(lambda: api.get(f"nodes/{node_segment(node)}"), lambda: server_view(api).settling)
        view = shaped(value, NodeView)
        if not view.replicas:
            note(f"{node} is empty after {format_age(time.monotonic() - started)}")
            return
        if not view.draining:
            raise SentenceError(f"the drain of {node} was taken back; {cells.listed(view.replicas)} stay there")
        left = f"{node}: {len(view.replicas)} left: {cells.listed(view.replicas)}"
        if left != said:
            note(left)
            said = left
        stuck = stuck + 1 if len(view.drain_left) >= len(view.replicas) else 0
        if stuck >= STUCK_LOOKS:
            reasons = "; ".join(cells.text(reason) for reason in view.drain_left)
            raise SentenceError(f"{node} cannot be emptied: {reasons}; add room, or use --force")
        time.sleep(DRAIN_POLL_S)


def _print_nodes(views: list[NodeView], server: str) -> None:
    columns: list[str | Column] = [
        "node",
        Column("state", state=True),
        "gpus",
        "fabrics",
        "replicas",
        "heard",
        "version",
        "notes",
    ]
    print_table(columns, [_row(view, server) for view in views], empty="no node has registered yet")


def _row(view: NodeView, server: str) -> list[str]:
    heard = cells.NONE if view.last_heard_s is None else f"{format_age(view.last_heard_s)} ago"
    fabrics = [fabric.name if fabric.usable else f"{fabric.name} (unusable)" for fabric in view.fabrics]
    return [
        view.node_id,
        _state(view),
        _gpus(view),
        cells.listed(fabrics),
        str(len(view.replicas)),
        heard,
        cells.text(view.version),
        _notes(view, server),
    ]


def _state(view: NodeView) -> str:
    marks = [mark for mark, on in (("cordoned", view.cordoned), ("draining", view.draining)) if on]
    return f"{view.state} ({', '.join(marks)})" if marks else view.state


def _gpus(view: NodeView) -> str:
    usable = sum(gpu.usable for gpu in view.gpus)
    broken = f", {len(view.gpus) - usable} unusable" if usable < len(view.gpus) else ""
    return f"{len(view.gpus_in_use)} of {usable} in use{broken}" if view.gpus else "none"


def _notes(view: NodeView, server: str) -> str:
    notes = [cells.text(view.reason)] if view.reason else []
    if view.version and server and view.version != server:
        notes.append(f"its agent is llmgw {cells.text(view.version)}, the server {cells.text(server)}")
    if view.drain_left:
        notes.append(f"cannot be moved: {len(view.drain_left)}: ctl nodes {view.node_id}")
    serious = [finding for finding in view.findings if finding.severity != "info"]
    notes += [cells.text(finding.what) for finding in serious[:1]]
    if len(serious) > 1:
        notes.append(f"{len(serious) - 1} more findings: ctl nodes {view.node_id}")
    return "; ".join(notes)


def _print_node(view: NodeView) -> None:
    facts: list[tuple[str, Any]] = [
        ("node", view.node_id),
        ("state", _state(view)),
        ("reason", cells.text(view.reason)),
        ("address", cells.text(view.address)),
        ("agent", cells.text(view.version)),
        ("heard", cells.NONE if view.last_heard_s is None else f"{format_age(view.last_heard_s)} ago"),
        ("certificate until", _certificate(view, time.time())),
        ("engines", cells.listed(view.engines)),
        ("replicas", cells.listed(view.replicas)),
        ("gpus", _gpus(view)),
    ]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{name.ljust(width)}  {value}")
    if view.gpus:
        print()
        print_table(
            ["gpu", "name", "memory", "in use", "notes"],
            [_gpu_row(view, index) for index in range(len(view.gpus))],
        )
    if view.fabrics:
        print()
        rows = [
            [
                fabric.name,
                "usable" if fabric.usable else "unusable",
                cells.listed(fabric.adapters),
                cells.rate(fabric.rate_gbps),
                cells.text(fabric.reason),
            ]
            for fabric in view.fabrics
        ]
        print_table(["fabric", Column("state", state=True), "adapters", "rate", "reason"], rows)
    if view.ports:
        print()
        rows = [
            [
                f"{port.adapter}:{port.port}",
                cells.text(port.state),
                cells.text(port.phys_state),
                cells.rate(port.rate_gbps),
            ]
            for port in view.ports
        ]
        print_table(["port", Column("state", state=True), "link", "rate"], rows)
    for heading, sentences in (
        ("what the drain cannot move", view.drain_left),
        ("what the drain is at", view.drain_waits),
    ):
        if sentences:
            print(f"\n{heading}:")
            for sentence in sentences:
                print(f"  {cells.text(sentence)}")
    if view.findings:
        print("\nfindings:")
        cells.print_findings(view.findings)


def _certificate(view: NodeView, now: float) -> str:
    """Until when it holds. A connected agent renews at half its life, so one that ends soon was not renewed."""
    if view.certificate_expires_at is None:
        return cells.NONE
    until, left_s = cells.local_time(view.certificate_expires_at), view.certificate_expires_at - now
    remedy = f"see its agent's log, or llmgw ctl cert renew {view.node_id}"
    if left_s <= 0:
        return f"{until} (EXPIRED {format_age(-left_s)} ago: {remedy})"
    warning = f": WARNING: not renewed; {remedy}" if left_s < CERTIFICATE_SOON_S else ""
    return f"{until} (in {format_age(left_s)}{warning})"


def _gpu_row(view: NodeView, index: int) -> list[str]:
    gpu = view.gpus[index]
    memory = cells.NONE if gpu.memory_total_mib is None else f"{gpu.memory_total_mib} MiB"
    if gpu.memory_used_mib is not None:
        memory = f"{gpu.memory_used_mib} of {memory}"
    used = "yes" if gpu.index in view.gpus_in_use else "no"
    reason = "" if gpu.usable else f"unusable: {cells.text(gpu.reason)}"
    return [str(gpu.index), cells.text(gpu.name), memory, used, reason]
