"""GPUs by NVML, the driver's own library. A call that the driver answers with an error is an unknown value;
only a library that cannot be used at all raises.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from llmgw.hardware.gpu_health import throttle_reasons, why_unusable
from llmgw.hardware.gpu_processes import GpuProcess, GpuProcesses
from llmgw.hardware.nvidia_smi import GpuTable
from llmgw.messages.agent import GPUS_PER_NODE_MAX, Gpu, MigDevice
from llmgw.messages.findings import Finding

# NVML_GPU_RECOVERY_ACTION_*, nvml.h of driver 580.
_RECOVERY_ACTIONS = {
    1: "Reset",
    2: "Reboot",
    3: "Drain P2P",
    4: "Drain and Reset",
    5: "Recover IMEX domain",
    6: "Bus reset",
    7: "System reboot",
}
_MIB = 1024 * 1024
# NVML_ERROR_NOT_SUPPORTED
_NOT_SUPPORTED = 3


class NvmlUnavailable(Exception):
    """NVML cannot be used here. `driver_present` is False where there is no NVIDIA driver at all."""

    def __init__(self, what: str, *, driver_present: bool) -> None:
        super().__init__(what)
        self.driver_present = driver_present


def read_nvml(module: Any = None) -> GpuTable:
    """Every GPU that the driver knows. `module` is `pynvml` (the default) or one that answers like it.

    The library is opened and closed again: an agent that kept it open would keep the driver from being
    reloaded and GPUs from being reset. Raises NvmlUnavailable.
    """
    nvml = module if module is not None else importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        missing = isinstance(error, (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded))
        raise NvmlUnavailable(f"NVML cannot be used: {error}", driver_present=not missing) from None
    try:
        return _read_all(nvml)
    except nvml.NVMLError as error:
        raise NvmlUnavailable(f"NVML failed: {error}", driver_present=True) from None
    finally:
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            pass


def read_answer(nvml: Any, function: Callable[..., Any], *args: Any) -> Any:
    """The function's answer, or None when the driver has none."""
    return _Asker(nvml).ask(function, *args)


def _read_all(nvml: Any) -> GpuTable:
    table = GpuTable(processes=GpuProcesses(whole=True))
    driver = _text(read_answer(nvml, nvml.nvmlSystemGetDriverVersion))
    cuda = _cuda_version(nvml)
    count = nvml.nvmlDeviceGetCount()
    if count > GPUS_PER_NODE_MAX:
        table.findings.append(
            Finding(
                check="gpu-count",
                severity="error",
                where="NVML",
                what=f"{count - GPUS_PER_NODE_MAX} GPUs beyond the first {GPUS_PER_NODE_MAX} are left out",
                why="llmgw takes no more GPUs from one node",
                remedy="nothing to do; an agent of its own, in a VM with the others passed through, takes those",
            )
        )
    seen: set[str] = set()
    for index in range(min(count, GPUS_PER_NODE_MAX)):
        try:
            gpu = _read_gpu(nvml, index, driver, cuda)
        except nvml.NVMLError as error:
            table.findings.append(
                Finding(
                    check="gpu-lost",
                    severity="error",
                    where=f"GPU {index}",
                    what=f"GPU {index} is lost: {error}",
                    why="The driver counts it but it does not answer; what ran on it is dead",
                    remedy="look at dmesg for Xid errors, then power-cycle the node",
                )
            )
            continue
        if gpu.uuid in seen:
            table.findings.append(
                Finding(
                    check="gpu-duplicate",
                    severity="warning",
                    where=f"GPU {index}",
                    what=f"{gpu.uuid} is listed twice; the second is left out",
                    why="Two names for one GPU would let two shards share it",
                    remedy="compare nvidia-smi -L; a driver that lists a GPU twice wants to be updated",
                )
            )
            continue
        seen.add(gpu.uuid)
        table.gpus.append(gpu)
        _read_processes(nvml, index, gpu.uuid, table.processes)
    return table


def _read_processes(nvml: Any, index: int, uuid: str, into: GpuProcesses) -> None:
    """The processes on one GPU. One that computes and draws is in both lists with the same size."""
    asker = _Asker(nvml)
    handle = asker.ask(nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        into.unknown.add(uuid)
        return
    compute = asker.ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    graphics = asker.ask(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
    if compute is None:
        into.unknown.add(uuid)
    computing = {process.pid for process in compute or []}
    for process in [*(compute or []), *(one for one in graphics or [] if one.pid not in computing)]:
        used = process.usedGpuMemory
        # NVML_VALUE_NOT_AVAILABLE is all ones; the bindings make it None, older ones do not.
        known = used is not None and 0 <= used < 2**60
        into.add(GpuProcess(uuid, int(process.pid), used // _MIB if known else None))


class _Asker:
    """Asks for one GPU's values and remembers what the refusals say about its health."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.reset_required = False
        self.lost = False
        self.unsupported = False
        """Whether the last question was one that this GPU has no answer to."""

    def ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The function's answer, or None when the driver has none."""
        self.unsupported = False
        try:
            return function(*args, **kwargs)
        except self.nvml.NVMLError_ResetRequired:
            self.reset_required = True
        except self.nvml.NVMLError_GpuIsLost:
            self.lost = True
        except self.nvml.NVMLError as error:
            self.unsupported = error.value == _NOT_SUPPORTED
        return None

    def ask_named(self, name: str, *args: Any) -> Any:
        """The same of a function that bindings of another age may not have."""
        function = getattr(self.nvml, name, None)
        return self.ask(function, *args) if function is not None else None


def _cuda_version(nvml: Any) -> str | None:
    """13010 → `13.1`."""
    ask = getattr(nvml, "nvmlSystemGetCudaDriverVersion_v2", None)
    number = read_answer(nvml, ask) if ask is not None else None
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _mig_devices(nvml: Any, handle: Any) -> list[MigDevice]:
    devices: list[MigDevice] = []
    for number in range(min(read_answer(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0, 64)):
        # Slots that hold no device are answered with an error.
        device = read_answer(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if device is None:
            continue
        memory = read_answer(nvml, nvml.nvmlDeviceGetMemoryInfo, device)
        name = _text(read_answer(nvml, nvml.nvmlDeviceGetName, device)) or ""
        devices.append(
            MigDevice(
                uuid=_text(read_answer(nvml, nvml.nvmlDeviceGetUUID, device)) or "",
                profile=name.rpartition("MIG ")[2][:40] if "MIG " in name else None,
                memory_total_mib=memory.total // _MIB or None if memory is not None else None,
            )
        )
    return devices


def _read_gpu(nvml: Any, index: int, driver: str | None, cuda: str | None) -> Gpu:
    """One GPU. Raises the module's NVMLError when there is no handle or no identity."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = _text(nvml.nvmlDeviceGetUUID(handle)) or ""
    asker = _Asker(nvml)
    ask = asker.ask
    # Version 2 counts what the driver keeps for itself apart, as nvidia-smi does.
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle, version=getattr(nvml, "nvmlMemory_v2", None))
    if memory is None:
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    unified = asker.unsupported if memory is None else not memory.total
    utilization = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    temperature = ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    pci = ask(nvml.nvmlDeviceGetPciInfo, handle)
    mig = ask(nvml.nvmlDeviceGetMigMode, handle)
    ecc = ask(
        nvml.nvmlDeviceGetTotalEccErrors,
        handle,
        nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        nvml.NVML_VOLATILE_ECC,
    )
    corrected = ask(
        nvml.nvmlDeviceGetTotalEccErrors,
        handle,
        getattr(nvml, "NVML_MEMORY_ERROR_TYPE_CORRECTED", 0),
        nvml.NVML_VOLATILE_ECC,
    )
    remapped = ask(nvml.nvmlDeviceGetRemappedRows, handle)
    reason = why_unusable(
        index,
        error_word="[GPU is lost]" if asker.lost else None,
        reset_required=asker.reset_required,
        recovery_action=_recovery_action(asker, handle),
        uncorrected_ecc=ecc,
        row_remap_failed=bool(remapped[3]) if remapped is not None else None,
    )
    return Gpu(
        index=index,
        uuid=uuid,
        name=(_text(ask(nvml.nvmlDeviceGetName, handle)) or "unknown")[:160],
        # Unified-memory machines answer 0 where discrete ones have a size: that is unknown.
        memory_total_mib=memory.total // _MIB or None if memory is not None else None,
        memory_used_mib=memory.used // _MIB if memory is not None and memory.total else None,
        utilization_percent=utilization.gpu if utilization is not None and utilization.gpu <= 100 else None,
        temperature_c=temperature,
        pci_bus_id=_text(pci.busId) if pci is not None else None,
        unified_memory=unified,
        driver_version=driver,
        cuda_version=cuda,
        power_w=_watts(asker.ask_named("nvmlDeviceGetPowerUsage", handle)),
        power_limit_w=_watts(asker.ask_named("nvmlDeviceGetEnforcedPowerLimit", handle)),
        corrected_ecc=corrected,
        uncorrected_ecc=ecc,
        throttled=throttle_reasons(_clock_reasons(asker, handle)),
        mig=bool(mig[0]) if mig is not None else None,
        mig_devices=_mig_devices(nvml, handle) if mig is not None and mig[0] else [],
        usable=reason is None,
        reason=reason,
    )


def _clock_reasons(asker: _Asker, handle: Any) -> int | None:
    reasons = asker.ask_named("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # its name until driver 535
        reasons = asker.ask_named("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return int(reasons) if reasons is not None else None


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / 1000 if milliwatts is not None else None


def _recovery_action(asker: _Asker, handle: Any) -> str | None:
    field = getattr(asker.nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    values = asker.ask(asker.nvml.nvmlDeviceGetFieldValues, handle, [field]) if field is not None else None
    # A driver that does not know the field says so in the value, not in the call.
    if not values or values[0].nvmlReturn != 0:
        return None
    action = int(values[0].value.uiVal)
    return _RECOVERY_ACTIONS.get(action, f"number {action}") if action else None


def _text(value: Any) -> str | None:
    """Older bindings answer bytes."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return str(value) if value else None
