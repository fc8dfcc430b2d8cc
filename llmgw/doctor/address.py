"""The management address: one that this node has, and that others can reach."""

from __future__ import annotations

from urllib.parse import urlsplit

from llmgw.config.addresses import is_loopback
from llmgw.doctor.check import Node
from llmgw.hardware.interfaces import AddressError, choose_address
from llmgw.messages.findings import Finding


def check_address(node: Node) -> list[Finding]:
    """Whether there is one, and whether it is more than this machine's own."""
    try:
        address = choose_address(node.config)
    except AddressError as error:
        what, _, remedy = str(error).partition(". ")
        return [
            node.finding(
                "address-missing",
                "error",
                "management address",
                what,
                why="Engines listen on it, and replicas of several nodes meet there",
                remedy=remedy or "set mgmt_addr or mgmt_interface in agent.yaml",
            )
        ]
    server = urlsplit(node.config.server).hostname or ""
    if is_loopback(address) and not is_loopback(server):
        return [
            node.finding(
                "address-loopback",
                "error",
                "management address",
                f"the management address is {address}, which only this machine reaches",
                why="The gateway and other nodes would look for this node's engines on themselves",
                remedy="set mgmt_addr or mgmt_interface in agent.yaml to the network of the server",
            )
        ]
    return []
