"""GPUs and their problems, adapters and ports against the declared fabrics, and what engines need to use them:
read as the agent reads them.
"""

from __future__ import annotations

import os
from pathlib import Path

from llmgw.doctor.check import Node
from llmgw.hardware.inventory import NodeReader
from llmgw.messages.findings import Finding

_GPU_TIMEOUT_S = 6.0
_SLOW_TIMEOUT_S = 8.0
# NVML and then nvidia-smi may each use up their time, then what is slow, and sysfs is read beside them.
LIMIT_S = 2 * _GPU_TIMEOUT_S + _SLOW_TIMEOUT_S + 3.0


def check_hardware(node: Node) -> list[Finding]:
    """What the agent would report of this node's hardware."""
    reader = NodeReader(node.config)
    reading = reader.read(
        gpu_timeout_s=_GPU_TIMEOUT_S,
        slow_timeout_s=_SLOW_TIMEOUT_S,
        pid=running_agent(node.config.supervisor.work_dir),
    )
    return reading.findings


def running_agent(work_dir: str) -> int | None:
    """The process of the agent that works in `work_dir`, whose limits engines inherit; None when none runs."""
    try:
        pid = int((Path(work_dir) / "agent.lock").read_text(encoding="ascii"))
        os.kill(pid, 0)
    except PermissionError:
        return pid
    except (OSError, ValueError):
        return None
    return pid
