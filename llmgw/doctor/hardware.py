"""GPUs and their problems, adapters and ports against the declared fabrics, and what engines need to use them:
read as the agent reads them.
"""

from __future__ import annotations

from pathlib import Path

from llmgw.doctor.check import Node
from llmgw.doctor.limits import inherited_limits
from llmgw.hardware.inventory import NodeReader
from llmgw.hardware.machine import machine_root
from llmgw.messages.findings import Finding

_GPU_TIMEOUT_S = 6.0
_SLOW_TIMEOUT_S = 8.0
# NVML and then nvidia-smi may each use up their time, then what is slow, and sysfs is read beside them.
LIMIT_S = 2 * _GPU_TIMEOUT_S + _SLOW_TIMEOUT_S + 3.0


def check_hardware(node: Node) -> list[Finding]:
    """What the agent would report of this node's hardware."""
    real = machine_root(Path(node.config.discovery.ib_root)) == Path("/")
    limits = inherited_limits(node.config.supervisor.work_dir) if real else None
    reader = NodeReader(node.config)
    return reader.read(gpu_timeout_s=_GPU_TIMEOUT_S, slow_timeout_s=_SLOW_TIMEOUT_S, limits=limits).findings
