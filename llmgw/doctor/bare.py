"""A node that is not configured yet: its hardware alone, as two options name it."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from llmgw.config.agent import AgentConfig, Discovery, FabricDeclaration
from llmgw.hardware.ports import read_ports
from llmgw.messages.agent import NODE_ID_PATTERN

_ADAPTERS_MAX = 32


def bare_config(discovery: Discovery) -> AgentConfig:
    """A configuration of nothing but hardware, with one fabric of all adapters: those with InfiniBand where there
    are any, else all. Whatever the node's server and certificate will be is not looked at.
    """
    ports = read_ports(Path(discovery.ib_root))
    infiniband = [port for port in ports if port.link_layer == "InfiniBand"]
    adapters = list(dict.fromkeys(port.adapter for port in infiniband or ports))[:_ADAPTERS_MAX]
    name = "infiniband" if infiniband else "roce"
    host = socket.gethostname().lower()
    return AgentConfig(
        node_id=host if re.fullmatch(NODE_ID_PATTERN, host) else "node",
        server="https://127.0.0.1:8443",
        discovery=discovery,
        fabrics=[FabricDeclaration(name=name, hcas=adapters)] if adapters else [],
    )
