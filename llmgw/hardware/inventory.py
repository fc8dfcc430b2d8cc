"""Everything that a node has, put together from the readers: what an agent registers and reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmgw.config.agent import AgentConfig
from llmgw.hardware.fabrics import offer_fabrics
from llmgw.hardware.gpu_processes import GpuProcesses
from llmgw.hardware.gpus import QUERY_TIMEOUT_S, read_gpus
from llmgw.hardware.ports import read_ports
from llmgw.messages.agent import PORTS_PER_NODE_MAX, FabricOffer, Gpu, Port
from llmgw.messages.findings import Finding

FINDINGS_MAX = 200


@dataclass(frozen=True, kw_only=True)
class NodeReading:
    """What was read. `processes` are who holds GPU memory; `where` of a finding begins with the node id."""

    gpus: list[Gpu]
    processes: GpuProcesses
    ports: list[Port]
    fabrics: list[FabricOffer]
    findings: list[Finding]


def read_inventory(config: AgentConfig, *, gpu_timeout_s: float = QUERY_TIMEOUT_S) -> NodeReading:
    """GPUs, ports, fabric offers and findings of this node, read afresh. Blocks (for `gpu_timeout_s` for each
    of NVML and nvidia-smi at worst) and raises nothing for what hardware and drivers do.
    """
    reading = read_gpus(config.discovery, timeout_s=gpu_timeout_s)
    ports = read_ports(Path(config.discovery.ib_root))
    offers, fabric_findings = offer_fabrics(config.fabrics, ports)
    kept, count_findings = _within_limit(ports, config)
    findings = [*reading.findings, *fabric_findings, *count_findings]
    if not config.fabrics:
        findings += _undeclared(ports)
    named = [
        msgspec.structs.replace(finding, where=f"{config.node_id} {finding.where}".rstrip())
        for finding in findings[:FINDINGS_MAX]
    ]
    return NodeReading(gpus=reading.gpus, processes=reading.processes, ports=kept, fabrics=offers, findings=named)


def _within_limit(ports: list[Port], config: AgentConfig) -> tuple[list[Port], list[Finding]]:
    """No more ports than a message may carry; those of declared fabrics are kept before others."""
    if len(ports) <= PORTS_PER_NODE_MAX:
        return ports, []
    declared = {hca.partition(":")[0] for fabric in config.fabrics for hca in fabric.hcas}
    first = sorted(range(len(ports)), key=lambda n: (ports[n].adapter not in declared, n))
    kept = [ports[n] for n in sorted(first[:PORTS_PER_NODE_MAX])]
    finding = Finding(
        check="port-count",
        severity="warning",
        where=config.discovery.ib_root,
        what=f"{len(ports) - PORTS_PER_NODE_MAX} of {len(ports)} ports are not reported",
        why=f"A node reports at most {PORTS_PER_NODE_MAX} ports; virtual functions count as adapters",
        remedy="nothing, unless one that you need is missing in ctl nodes: declare it in a fabric",
    )
    return kept, [finding]


def _undeclared(ports: list[Port]) -> list[Finding]:
    active = [port for port in ports if port.link_layer == "InfiniBand" and port.state == "ACTIVE"]
    if not active:
        return []
    names = ", ".join(dict.fromkeys(port.adapter for port in active))
    return [
        Finding(
            check="fabric-undeclared",
            severity="info",
            where="fabrics",
            what=f"ACTIVE InfiniBand ports belong to no declared fabric: {names}",
            why="Without a fabric this node hosts replicas of a single node only",
            remedy="declare one under fabrics in agent.yaml, with these adapters as hcas",
        )
    ]
