"""What seldom changes and takes nvidia-smi seconds to say: how GPUs are joined, their MIG devices, CUDA's
version, and whether it agrees with NVML. Asked once for a set of GPUs, and again at a slow beat.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from llmgw.config.agent import Discovery
from llmgw.hardware.gpus import GpuReading, ask_nvidia_smi, find_program, unusable_finding
from llmgw.hardware.nvidia_smi import TEXT_BYTES_MAX, GpuTable, parse_gpus
from llmgw.hardware.nvidia_smi_cells import refuse
from llmgw.hardware.nvml_topology import read_nvml_topology
from llmgw.hardware.programs import ProgramError, run_program
from llmgw.hardware.topo import Topology, left_out, parse_topology
from llmgw.messages.agent import Gpu, MigDevice
from llmgw.messages.findings import Finding

BEAT_S = 300.0
RETRY_S = 60.0
_LEAST_S = 0.5
_CUDA = re.compile(r"CUDA Version\s*:\s*(\d{1,3}\.\d{1,3})")


@dataclass(frozen=True, kw_only=True)
class SlowFacts:
    """What was asked of one set of GPUs. `topology` is empty where nothing tells it."""

    topology: Topology = field(default_factory=Topology)
    cuda_version: str | None = None
    mig_devices: dict[str, list[MigDevice]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


class SlowReader:
    """Keeps the newest facts. One asks at a time, in a thread: a driver that hangs holds up nobody."""

    def __init__(
        self,
        *,
        nvml_topology: Callable[[], Topology] = read_nvml_topology,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` counts seconds."""
        self._nvml_topology = nvml_topology
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None
        self._facts = SlowFacts()
        self._of: object = None
        self._until = float("-inf")

    def read(self, reading: GpuReading, discovery: Discovery, *, wait_s: float) -> SlowFacts:
        """Facts about the GPUs of `reading`. Asks when there are none yet (and waits up to `wait_s`), and
        asks anew, without waiting, when they are old. Empty until they are there.
        """
        key = (reading.source, tuple((gpu.index, gpu.uuid, gpu.mig) for gpu in reading.gpus))
        if not reading.gpus:
            return SlowFacts()
        with self._lock:
            known, started = self._of == key, False
            if (not known or self._clock() >= self._until) and (
                self._asking is None or not self._asking.is_alive()
            ):
                self._asking = threading.Thread(
                    target=self._ask, args=(key, reading, discovery, wait_s), name="gpu facts", daemon=True
                )
                self._asking.start()
                started = True
            asking = self._asking
        # Whoever finds one that hangs does not wait for it.
        if not known and started and asking is not None:
            asking.join(wait_s)
        with self._lock:
            return self._facts if self._of == key else SlowFacts()

    def _ask(self, key: object, reading: GpuReading, discovery: Discovery, limit_s: float) -> None:
        facts = _read(reading, discovery, self._nvml_topology, limit_s)
        with self._lock:
            self._facts, self._of = facts, key
            self._until = self._clock() + (BEAT_S if facts.topology.gpus else RETRY_S)


def with_slow_facts(gpus: Sequence[Gpu], facts: SlowFacts) -> tuple[list[Gpu], list[Finding]]:
    """The GPUs with what is known of them, and what is wrong with how they are joined."""
    topology = facts.topology
    lone = _lost_their_links(gpus, topology)
    findings = list(facts.findings)
    told: list[Gpu] = []
    for gpu in gpus:
        paths = topology.paths.get(gpu.index)
        gpu = msgspec.structs.replace(
            gpu,
            paths=paths,
            nvswitch=topology.through_switch(gpu.index),
            cuda_version=gpu.cuda_version or facts.cuda_version,
            mig_devices=gpu.mig_devices or facts.mig_devices.get(gpu.uuid, []),
        )
        if gpu.index in lone:
            reason = (
                "it has no NVLink, while the other GPUs of its kind are joined to each other; look at "
                f"nvidia-smi nvlink -s -i {gpu.index} and nvidia-fabricmanager's log, then reset or reboot"
            )
            why = "It takes no new shard: a group with it would hang or crawl"
            findings.append(unusable_finding(gpu.index, reason, why))
            gpu = refuse(gpu, reason)
        told.append(gpu)
    return told, findings


def _lost_their_links(gpus: Sequence[Gpu], topology: Topology) -> set[int]:
    """Usable GPUs that are left out of the NVLinks among GPUs of their own name. Of one that is lost no name is
    known, and the table has it still.
    """
    names = {gpu.index: gpu.name for gpu in gpus}
    lone = left_out(topology)
    linked = {names[index] for index in topology.gpus if index not in lone and index in names}
    usable = {gpu.index for gpu in gpus if gpu.usable}
    return {index for index in lone if index in usable and linked == {names[index]}}


def _read(
    reading: GpuReading, discovery: Discovery, nvml_topology: Callable[[], Topology], limit_s: float
) -> SlowFacts:
    deadline = time.monotonic() + limit_s
    program = find_program(discovery.nvidia_smi)

    def say(*args: str) -> str:
        """What nvidia-smi says; nothing when it cannot."""
        left_s = deadline - time.monotonic()
        if program is None or left_s < _LEAST_S:
            return ""
        try:
            output = run_program([program, *args], timeout_s=left_s, output_bytes_max=TEXT_BYTES_MAX)
        except ProgramError:
            return ""
        return output.stdout if output.code == 0 else ""

    findings: list[Finding] = []
    topology = Topology()
    if len(reading.gpus) > 0:
        topology = parse_topology(say("topo", "-m"))
        if not topology.gpus:
            topology = nvml_topology() if reading.source == "nvml" else Topology()
    findings += _doubts(reading.gpus, topology)
    cuda: str | None = None
    if all(gpu.cuda_version is None for gpu in reading.gpus):
        match = _CUDA.search(say("--version")) or _CUDA.search(say())
        cuda = match[1] if match else None
    mig: dict[str, list[MigDevice]] = {}
    if any(gpu.mig and not gpu.mig_devices for gpu in reading.gpus):
        mig = {gpu.uuid: gpu.mig_devices for gpu in parse_gpus(say("-L")).gpus}
    left_s = deadline - time.monotonic()
    if reading.source == "nvml" and program is not None and left_s >= _LEAST_S:
        try:
            findings += compare(reading.gpus, ask_nvidia_smi(program, left_s))
        except ProgramError as error:
            findings.append(_disagreement(f"NVML answers and nvidia-smi does not: {error}", error.remedy))
    return SlowFacts(topology=topology, cuda_version=cuda, mig_devices=mig, findings=findings)


def _doubts(gpus: Sequence[Gpu], topology: Topology) -> list[Finding]:
    """What is not known of how several GPUs are joined."""
    if len(gpus) < 2:
        return []
    if not topology.paths:
        return [
            Finding(
                check="gpu-topology",
                severity="info",
                where="GPUs",
                what="how the GPUs are joined is not known: nvidia-smi topo -m gives no table",
                why="A shard of some of them gets the lowest indexes, which may have no NVLink between them",
                remedy="run nvidia-smi topo -m by hand",
            )
        ]
    return [
        Finding(
            check="gpu-topology",
            severity="warning",
            where="GPUs",
            what=f"nvidia-smi topo -m: {problem}",
            why="A shard may get GPUs that are not joined as is thought",
            remedy="run nvidia-smi topo -m by hand, and look at dmesg",
        )
        for problem in topology.problems
        if "has no NVLink" not in problem  # judged with the GPUs' names
    ]


def compare(gpus: Sequence[Gpu], other: GpuTable) -> list[Finding]:
    """Where nvidia-smi says something else than NVML does (`gpus`)."""
    ours, theirs = {gpu.uuid: gpu for gpu in gpus}, {gpu.uuid: gpu for gpu in other.gpus}
    remedy = "run nvidia-smi -L, and look at dmesg; reboot when the driver was updated"
    findings = [
        _disagreement(f"NVML lists GPU {gpu.index} ({uuid}), and nvidia-smi does not", remedy)
        for uuid, gpu in ours.items()
        if uuid not in theirs
    ]
    findings += [
        _disagreement(f"nvidia-smi lists GPU {gpu.index} ({uuid}), and NVML does not", remedy)
        for uuid, gpu in theirs.items()
        if uuid not in ours
    ]
    findings += [
        _disagreement(
            f"nvidia-smi says of GPU {theirs[uuid].index}, which NVML calls whole: {theirs[uuid].reason}", remedy
        )
        for uuid, gpu in ours.items()
        if gpu.usable and uuid in theirs and not theirs[uuid].usable
    ]
    return findings


def _disagreement(what: str, remedy: str) -> Finding:
    return Finding(
        check="gpu-readers-differ",
        severity="warning",
        where="NVML and nvidia-smi",
        what=what,
        why="One of them is wrong, and llmgw believes NVML",
        remedy=remedy,
    )
