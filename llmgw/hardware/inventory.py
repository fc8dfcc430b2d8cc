"""Everything that a node has, put together from the readers: what an agent registers and reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmgw.config.agent import AgentConfig
from llmgw.hardware.fabrics import offer_fabrics
from llmgw.hardware.gids import gid_findings
from llmgw.hardware.gpu_processes import GpuProcesses
from llmgw.hardware.gpus import QUERY_TIMEOUT_S, read_gpus
from llmgw.hardware.machine import Limits, machine_root, rdma_findings
from llmgw.hardware.pci import nearest_adapters
from llmgw.hardware.ports import read_ports
from llmgw.hardware.slow_facts import SlowReader, with_slow_facts
from llmgw.hardware.topo import Topology
from llmgw.hardware.xid import XidLog, with_xids, xid_findings
from llmgw.messages.agent import PORTS_PER_NODE_MAX, FabricOffer, Gpu, Port
from llmgw.messages.findings import Finding

FINDINGS_MAX = 200
SLOW_TIMEOUT_S = 15.0


@dataclass(frozen=True, kw_only=True)
class NodeReading:
    """What was read. `processes` are who holds GPU memory; `where` of a finding begins with the node id."""

    gpus: list[Gpu]
    processes: GpuProcesses
    ports: list[Port]
    fabrics: list[FabricOffer]
    findings: list[Finding]


class NodeReader:
    """Reads one node again and again. It keeps what is slow to ask, and follows the kernel's log."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._ib_root = Path(config.discovery.ib_root)
        self._root = machine_root(self._ib_root)
        self._slow = SlowReader()
        self._xids = XidLog(self._root / "dev" / "kmsg") if self._root is not None else None

    def read(
        self,
        *,
        gpu_timeout_s: float = QUERY_TIMEOUT_S,
        slow_timeout_s: float = SLOW_TIMEOUT_S,
        limits: Limits | None = None,
    ) -> NodeReading:
        """GPUs, ports, fabric offers and findings, read afresh. `limits` are those that engines inherit
        (None: this process's).

        Blocks (for `gpu_timeout_s` for each of NVML and nvidia-smi at worst, and once for `slow_timeout_s`) and
        raises nothing for what hardware and drivers do.
        """
        config = self._config
        pci_root = self._root / "sys" / "bus" / "pci" / "devices" if self._root is not None else None
        ports = read_ports(self._ib_root)
        reading = read_gpus(
            config.discovery,
            pci_root=pci_root,
            condemned=self._xids.condemned() if self._xids is not None else None,
            timeout_s=gpu_timeout_s,
        )
        facts = self._slow.read(reading, config.discovery, wait_s=slow_timeout_s)
        known = with_xids(reading.gpus, self._xids.counts() if self._xids is not None else None)
        gpus, slow_findings = with_slow_facts(known, facts)
        gpus = [_with_adapters(gpu, facts.topology, ports, pci_root) for gpu in gpus]
        offers, fabric_findings = offer_fabrics(config.fabrics, ports)
        kept, count_findings = _within_limit(ports, config)
        findings = [*reading.findings, *xid_findings(gpus), *slow_findings, *fabric_findings, *count_findings]
        if config.fabrics:
            findings += gid_findings(config.fabrics, ports)
            findings += rdma_findings(self._root, ports, gpus, limits=limits)
        else:
            findings += _undeclared(ports)
        named = [
            msgspec.structs.replace(finding, where=f"{config.node_id} {finding.where}".rstrip())
            for finding in findings[:FINDINGS_MAX]
        ]
        return NodeReading(gpus=gpus, processes=reading.processes, ports=kept, fabrics=offers, findings=named)


def _with_adapters(gpu: Gpu, topology: Topology, ports: list[Port], pci_root: Path | None) -> Gpu:
    """The GPU with the adapters near to it: as nvidia-smi says, or by the PCI tree where it names none."""
    known = {port.adapter for port in ports}
    near = topology.nearest_nics(gpu.index)
    if near is None or not topology.nics.get(gpu.index) or not known.issuperset(near):
        near = nearest_adapters(gpu.pci_bus_id, ports, pci_root)
    return msgspec.structs.replace(gpu, nearest_adapters=near)


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
    active = [port for port in ports if port.link_layer == "InfiniBand" and port.is_up]
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
