"""Whether this node can ask its InfiniBand fabrics how they are cabled and who manages them."""

from __future__ import annotations

from pathlib import Path

from llmgw.doctor.check import Node
from llmgw.hardware.fabric_tools import fabric_tool_findings
from llmgw.hardware.ports import read_ports
from llmgw.messages.findings import Finding


def check_fabric_tools(node: Node) -> list[Finding]:
    """infiniband-diags and the management devices, where an InfiniBand fabric is declared."""
    found = fabric_tool_findings(node.config, read_ports(Path(node.config.discovery.ib_root)))
    return [
        node.finding(each.check, each.severity, each.where, each.what, why=each.why, remedy=each.remedy)
        for each in found
    ]
