"""The demo's live view: nodes and replicas as the admin API tells them, and what to try."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from llmgw.sim.demo_fleet import DemoFleet

_MARK = {"ready": ("●", "green"), "starting": ("◐", "yellow"), "lost": ("✗", "red"), "failed": ("✗", "red")}


async def render(fleet: DemoFleet) -> Group:
    """One frame. Raises httpx.HTTPError while the server does not answer."""
    nodes = await fleet.get("nodes")
    replicas = await fleet.get("replicas")
    history = await fleet.get("history?limit=6")
    return Group(_nodes(nodes), _replicas(replicas), _history(history), hints(fleet))


def hints(fleet: DemoFleet) -> Panel:
    """What to type in another terminal."""
    victim = sorted(fleet.nodes)[:2][-1]
    lines = [
        "In another terminal:",
        "  llmgw ctl nodes      llmgw ctl replicas      llmgw ctl explain demo/big      llmgw ctl history",
        f"  llmgw sim power-off {victim}      and watch its replicas return on the fabric that can hold them",
        f"  llmgw ctl fabrics    llmgw ctl fabric-test {' '.join(pair(fleet))} --busy-ok",
        f"In a browser: {fleet.admin}/admin (the token to log in with: {fleet.state / 'admin.json'})",
        "Ctrl-C ends everything.",
    ]
    return Panel(Text("\n".join(lines)), title=f"API {fleet.api}/v1   admin {fleet.admin}", title_align="left")


def pair(fleet: DemoFleet) -> list[str]:
    """Two nodes of one fabric."""
    first = min(fleet.nodes)
    return [node for node in sorted(fleet.nodes) if fleet.nodes[node][1] == fleet.nodes[first][1]][:2]


def curl_line(api: str, model: str) -> str:
    """A command that streams from a model."""
    body = f'{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":"hello"}}]}}'
    return f"curl -N {api}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


def event_words(item: dict[str, Any]) -> str:
    """What happened; to a fabric, also on which nodes, since several say the same of it."""
    on = f" on {', '.join(item['nodes'])}" if item["kind"] == "fabric" and item["nodes"] else ""
    return f"{item['event']}{on}"


def _state(word: str) -> Text:
    mark, colour = _MARK.get(word, ("○", "white"))
    return Text(f"{mark} {word}", style=colour)


def _nodes(nodes: list[dict[str, Any]]) -> Table:
    table = Table(
        "node", "state", "fabric", "GPUs in use", "last heard", title="Nodes", title_justify="left", expand=True
    )
    for node in nodes:
        fabrics = ", ".join(
            offer["name"] + ("" if offer["usable"] else " (unusable)") for offer in node["fabrics"]
        )
        heard = "-" if node["last_heard_s"] is None else f"{node['last_heard_s']:.0f} s ago"
        use = "".join("■" if gpu["index"] in node["gpus_in_use"] else "□" for gpu in node["gpus"])
        table.add_row(node["node_id"], _state(node["state"]), fabrics, use, heard)
    return table


def _replicas(replicas: list[dict[str, Any]]) -> Table:
    table = Table(
        "replica",
        "state",
        "fabric",
        "nodes (leader first)",
        "in flight",
        "why",
        title="Replicas",
        title_justify="left",
        expand=True,
    )
    for replica in replicas:
        table.add_row(
            replica["replica_id"],
            _state(replica["state"]),
            replica["fabric"] or "-",
            ", ".join(replica["nodes"]),
            str(replica["in_flight"]),
            replica["reason"] or "",
        )
    return table


def _history(history: list[dict[str, Any]]) -> Table:
    table = Table("what happened", "", "why", title="History", title_justify="left", expand=True)
    for item in reversed(history):
        table.add_row(item["subject"], event_words(item), item["reason"])
    return table
