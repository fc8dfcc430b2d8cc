"""Simulated nodes for the tests of the readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmgw.config.agent import AgentConfig, Discovery
from llmgw.sim.hardware import SimulatedHardware


def discovery_of(node: SimulatedHardware, **keys: Any) -> Discovery:
    """`discovery` of an agent that looks at this hardware."""
    return Discovery(nvidia_smi=str(node.nvidia_smi), ib_root=str(node.ib_root), **keys)


def config_of(node: SimulatedHardware, **keys: Any) -> AgentConfig:
    """The configuration of an agent on this hardware."""
    return AgentConfig(node_id="node01", server="https://127.0.0.1:8443", discovery=discovery_of(node), **keys)


def write_program(path: Path, body: str) -> Path:
    """A shell script that may be run."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
