"""GPUs and their problems, adapters and ports against the declared fabrics: read as the agent reads them."""

from __future__ import annotations

from llmgw.doctor.check import Node
from llmgw.hardware.inventory import read_inventory
from llmgw.messages.findings import Finding

_GPU_TIMEOUT_S = 6.0
# NVML and then nvidia-smi may each use up their time, and sysfs is read after them.
LIMIT_S = 2 * _GPU_TIMEOUT_S + 3.0


def check_hardware(node: Node) -> list[Finding]:
    """What the agent would report of this node's hardware."""
    return read_inventory(node.config, gpu_timeout_s=_GPU_TIMEOUT_S).findings
