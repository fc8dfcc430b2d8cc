"""Whether enough ports for engines are free in the configured range."""

from __future__ import annotations

from llmgw.doctor.check import Node
from llmgw.hardware.tcp_ports import is_free
from llmgw.messages.findings import Finding

PORTS_WANTED = 16
"""One to serve on and one to meet on, for a shard on each of eight GPUs."""


def check_ports(node: Node) -> list[Finding]:
    """Binds to each port of the range in turn, until enough are found free."""
    address = node.address()
    if address is None:
        return []
    ports = node.config.supervisor.ports
    free = 0
    for port in ports:
        free += is_free(address, port)
        if free == PORTS_WANTED:
            return []
    return [
        node.finding(
            "ports-few",
            "warning" if free >= 2 else "error",
            f"supervisor.port_range {node.config.supervisor.port_range}",
            f"{free} of {len(ports)} ports are free on {address}",
            why="Each shard needs one to serve on, and a leader of several nodes one to meet on",
            remedy="widen supervisor.port_range in agent.yaml; ss -ltnp shows who listens",
        )
    ]
