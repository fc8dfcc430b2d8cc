"""The GPUs of this node: NVML or nvidia-smi, whichever works, and what is wrong with them."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from llmgw.config.agent import Discovery
from llmgw.hardware.gpu_processes import GpuProcesses, parse_gpu_processes, process_query_args
from llmgw.hardware.nvidia_smi import (
    QUERY_FIELDS,
    REQUIRED_FIELDS,
    TEXT_BYTES_MAX,
    GpuTable,
    invalid_field,
    parse_gpus,
    query_args,
)
from llmgw.hardware.nvidia_smi_cells import refuse
from llmgw.hardware.nvidia_smi_exits import explain_exit
from llmgw.hardware.nvml import NvmlUnavailable, read_nvml
from llmgw.hardware.pci import PCI_ROOT, numa_node_of
from llmgw.hardware.programs import ProgramError, ProgramOutput, run_program
from llmgw.hardware.unified_memory import system_memory_mib, with_memory
from llmgw.hardware.xid import Xid, condemn
from llmgw.messages.agent import Gpu
from llmgw.messages.findings import Finding

QUERY_TIMEOUT_S = 20.0
# While no GPU has more in use than this, nobody can hold much, and nvidia-smi is not run a second time.
ASK_ABOVE_MIB = 128
_LEAST_S = 1.0
_INSTALL = "install the NVIDIA driver, or name nvidia-smi in discovery.nvidia_smi of agent.yaml"
_NO_GPU = "This node can run nothing that needs a GPU"


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """One reading. `source` is what answered; None when nothing did. `processes` are who holds their memory."""

    gpus: list[Gpu] = field(default_factory=list)
    processes: GpuProcesses = field(default_factory=GpuProcesses)
    findings: list[Finding] = field(default_factory=list)
    source: Literal["nvml", "nvidia-smi"] | None = None


def read_gpus(
    discovery: Discovery,
    *,
    nvml: Callable[[], GpuTable] = read_nvml,
    pci_root: Path | None = PCI_ROOT,
    condemned: Mapping[str, Xid] | None = None,
    system_memory: Callable[[], tuple[int, int]] = system_memory_mib,
    timeout_s: float = QUERY_TIMEOUT_S,
) -> GpuReading:
    """Every GPU of this node, also those that are not usable, and the findings about them. Blocks.

    NVML is asked first where `discovery` prefers it and names nvidia-smi by a bare name; nvidia-smi is asked
    otherwise, and when NVML does not work. `condemned` are PCI devices with a fatal Xid. Raises nothing: without
    both there are no GPUs and a finding.
    """
    table: GpuTable | None = None
    source: Literal["nvml", "nvidia-smi"] | None = None
    nvml_problem: NvmlUnavailable | None = None
    if discovery.prefer_nvml and "/" not in discovery.nvidia_smi:
        try:
            table, source = _NVML.read(nvml, timeout_s), "nvml"
        except NvmlUnavailable as error:
            nvml_problem = error
    if table is None:
        program = find_program(discovery.nvidia_smi)
        if program is None:
            return GpuReading(findings=[_nothing_to_ask(discovery, nvml_problem)])
        try:
            table, source = ask_nvidia_smi(program, timeout_s), "nvidia-smi"
        except ProgramError as error:
            finding = Finding(
                check="gpu-driver",
                severity="error",
                where="nvidia-smi",
                what=str(error),
                why=_NO_GPU,
                remedy=error.remedy,
            )
            return GpuReading(findings=[finding])
    found = condemn(sorted(table.gpus, key=lambda gpu: gpu.index), condemned or {})
    if any(gpu.unified_memory for gpu in found):
        found = with_memory(found, *system_memory())
    gpus, skip_findings = _skip(found, discovery.skip_gpus)
    gpus = [msgspec.structs.replace(gpu, numa_node=numa_node_of(gpu.pci_bus_id, pci_root)) for gpu in gpus]
    findings = [*table.findings, *skip_findings, *_judge(found)]
    if not gpus and not findings:
        findings = [
            Finding(
                check="gpu-none",
                severity="warning",
                where=source or "",
                what="the driver answers and lists no GPU",
                why=_NO_GPU,
                remedy="check lspci -d 10de: and dmesg; in a VM, check that the GPUs are passed through",
            )
        ]
    return GpuReading(gpus=gpus, processes=table.processes, findings=findings, source=source)


def find_program(name: str) -> str | None:
    """The path of `discovery.nvidia_smi`; None when a bare name is not in PATH."""
    return name if "/" in name else shutil.which(name)


def ask_nvidia_smi(program: str, timeout_s: float) -> GpuTable:
    """Ask for every field, and again without those that an older driver does not know; then, in what is left of
    the time, who holds memory. Raises ProgramError."""
    began_s = time.monotonic()
    fields = list(QUERY_FIELDS)
    while True:
        output = run_program([program, *query_args(fields)], timeout_s=timeout_s, output_bytes_max=TEXT_BYTES_MAX)
        unknown = invalid_field(output.stdout) or invalid_field(output.stderr)
        if output.code == 0 or unknown not in fields or unknown in REQUIRED_FIELDS:
            break
        fields.remove(unknown)
    table = parse_gpus(output.stdout)
    if not table.gpus and not table.findings:
        # Some failures are said on stderr alone.
        table = parse_gpus(output.stderr)
    explained = any(finding.severity == "error" or finding.check == "gpu-none" for finding in table.findings)
    if output.code != 0 and not explained:
        table.findings.append(_exit_finding(output, table))
    if any(gpu.memory_used_mib is None or gpu.memory_used_mib > ASK_ABOVE_MIB for gpu in table.gpus):
        table.processes = _ask_processes(program, max(_LEAST_S, timeout_s - (time.monotonic() - began_s)))
    return table


def _ask_processes(program: str, timeout_s: float) -> GpuProcesses:
    """Who holds memory; unknown when nvidia-smi cannot say, which is told for the GPUs already."""
    try:
        output = run_program(
            [program, *process_query_args()], timeout_s=timeout_s, output_bytes_max=TEXT_BYTES_MAX
        )
    except ProgramError:
        return GpuProcesses()
    listed = parse_gpu_processes(output.stdout)
    if output.code != 0 or output.cut:
        listed.whole = False
    return listed


def _exit_finding(output: ProgramOutput, table: GpuTable) -> Finding:
    what, remedy = explain_exit(output.code)
    if output.cut:
        what = f"it printed more than {TEXT_BYTES_MAX} bytes and was ended"
    return Finding(
        check="gpu-driver",
        severity="warning" if table.gpus else "error",
        where="nvidia-smi",
        what=f"nvidia-smi failed: {what}",
        why="Its answer may be incomplete" if table.gpus else _NO_GPU,
        remedy=remedy,
    )


def _nothing_to_ask(discovery: Discovery, nvml_problem: NvmlUnavailable | None) -> Finding:
    if nvml_problem is not None and nvml_problem.driver_present:
        return Finding(
            check="gpu-driver",
            severity="error",
            where="NVML",
            what=f"{nvml_problem}, and {discovery.nvidia_smi} is not in PATH",
            why=_NO_GPU,
            remedy="look at dmesg; reboot after a driver update",
        )
    tried = "NVML and " if nvml_problem is not None else ""
    return Finding(
        check="gpu-none",
        severity="warning",
        where="GPUs",
        what=f"no NVIDIA driver was found ({tried}{discovery.nvidia_smi} are missing)"
        if tried
        else f"no NVIDIA driver was found ({discovery.nvidia_smi} is not in PATH)",
        why=_NO_GPU,
        remedy=_INSTALL,
    )


def _skip(gpus: list[Gpu], skip: list[int | str]) -> tuple[list[Gpu], list[Finding]]:
    """Take the GPUs that the configuration names out of use, and say which names fit none."""
    indexes = {int(entry) for entry in skip if isinstance(entry, int) or entry.isdecimal()}
    uuids = {entry.lower() for entry in skip if isinstance(entry, str)}
    marked = [
        refuse(gpu, "skipped by discovery.skip_gpus", "skipped")
        if gpu.index in indexes or (gpu.uuid and gpu.uuid.lower() in uuids)
        else gpu
        for gpu in gpus
    ]
    known = {str(gpu.index) for gpu in gpus} | {gpu.uuid.lower() for gpu in gpus}
    findings = [
        Finding(
            check="gpu-skip",
            severity="warning",
            where="discovery.skip_gpus",
            what=f"discovery.skip_gpus names {entry}, which is no GPU of this node",
            why="The GPU that was meant may be in use",
            remedy="name it by index or UUID as nvidia-smi -L prints them",
        )
        for entry in skip
        if str(entry).lower() not in known
    ]
    return marked, findings


def unusable_finding(index: int, reason: str, why: str) -> Finding:
    """A GPU that is broken. A `reason` is what is wrong and, behind the first semicolon, what to do."""
    what, _, remedy = reason.partition("; ")
    return Finding(
        check="gpu-unusable",
        severity="error",
        where=f"GPU {index}",
        what=f"GPU {index} is not usable: {what}",
        why=why,
        remedy=remedy or f"look at nvidia-smi -q -i {index} and at dmesg, then reset or reboot",
    )


def _judge(gpus: list[Gpu]) -> list[Finding]:
    """A finding for every GPU that is broken (not for those that are only skipped), and for MIG."""
    findings = []
    for gpu in gpus:
        where = f"GPU {gpu.index}"
        if not gpu.usable:
            findings.append(unusable_finding(gpu.index, gpu.reason or "", "It takes no new shard"))
        elif gpu.mig:
            findings.append(
                Finding(
                    check="gpu-mig",
                    severity="warning",
                    where=where,
                    what=f"GPU {gpu.index} is cut into MIG devices",
                    why="It is offered as one GPU, of which an engine gets no more than one MIG device",
                    remedy=f"turn it off (nvidia-smi -i {gpu.index} -mig 0), or name it in discovery.skip_gpus",
                )
            )
    return findings


class _PatientNvml:
    """Asks NVML in a thread of its own: a call into a hung driver never returns and cannot be ended.

    While one hangs no other is started, so that a dead driver costs one thread and not one a reading.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hanging: threading.Thread | None = None

    def read(self, nvml: Callable[[], GpuTable], timeout_s: float) -> GpuTable:
        """What `nvml` answers. Raises NvmlUnavailable, also when it takes longer than `timeout_s`."""
        answers: list[GpuTable] = []
        problems: list[NvmlUnavailable] = []

        def ask() -> None:
            try:
                answers.append(nvml())
            except NvmlUnavailable as error:
                problems.append(error)
            except Exception as error:  # the bindings and the driver may be of different ages
                problems.append(NvmlUnavailable(f"NVML failed: {error!r}", driver_present=True))

        with self._lock:
            if self._hanging is not None and self._hanging.is_alive():
                raise NvmlUnavailable("NVML still hangs in the driver", driver_present=True)
        thread = threading.Thread(target=ask, name="nvml", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if answers:
            return answers[0]
        if problems:
            raise problems[0]
        with self._lock:
            self._hanging = thread
        raise NvmlUnavailable(f"NVML did not answer within {timeout_s:g} s", driver_present=True)


_NVML = _PatientNvml()
