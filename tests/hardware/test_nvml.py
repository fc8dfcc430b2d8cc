"""GPUs by NVML, with a library of the tests' own that answers like `pynvml`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from llmgw.hardware.nvml import NvmlUnavailable, read_nvml

MIB = 1024 * 1024


class Library:
    """Answers for GPUs given as dicts of answers; an exception in place of an answer is raised."""

    NVMLError = pynvml.NVMLError
    NVMLError_LibraryNotFound = pynvml.NVMLError_LibraryNotFound
    NVMLError_DriverNotLoaded = pynvml.NVMLError_DriverNotLoaded
    NVMLError_ResetRequired = pynvml.NVMLError_ResetRequired
    NVMLError_GpuIsLost = pynvml.NVMLError_GpuIsLost
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    NVML_VOLATILE_ECC = pynvml.NVML_VOLATILE_ECC
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    nvmlMemory_v2 = pynvml.nvmlMemory_v2

    def __init__(self, *gpus: dict[str, Any], init: Exception | None = None) -> None:
        self.gpus = gpus
        self.init = init
        self.open = 0

    def nvmlInit(self) -> None:
        if self.init is not None:
            raise self.init
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "590.48.01"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return answer(self.gpus[index], "handle", self.gpus[index])

    def nvmlDeviceGetUUID(self, gpu: dict[str, Any]) -> Any:
        return answer(
            gpu, "uuid", f"GPU-{next((n for n, other in enumerate(self.gpus) if other is gpu), 99):08d}"
        )

    def nvmlDeviceGetName(self, gpu: dict[str, Any]) -> Any:
        return answer(gpu, "name", "NVIDIA H200")

    def nvmlDeviceGetMemoryInfo(self, gpu: dict[str, Any], version: object = None) -> Any:
        return answer(gpu, "memory", SimpleNamespace(total=143771 * MIB, used=55 * MIB))

    def nvmlDeviceGetUtilizationRates(self, gpu: dict[str, Any]) -> Any:
        return answer(gpu, "utilization", SimpleNamespace(gpu=17))

    def nvmlDeviceGetTemperature(self, gpu: dict[str, Any], sensor: int) -> Any:
        return answer(gpu, "temperature", 33)

    def nvmlDeviceGetPciInfo(self, gpu: dict[str, Any]) -> Any:
        return answer(gpu, "pci", SimpleNamespace(busId="00000000:83:00.0"))

    def nvmlDeviceGetMigMode(self, gpu: dict[str, Any]) -> Any:
        return answer(gpu, "mig", [0, 0])

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13010

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: dict[str, Any]) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: dict[str, Any], index: int) -> dict[str, Any]:
        devices = gpu.get("devices", [])
        if index >= len(devices):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        found: dict[str, Any] = devices[index]
        return found

    def nvmlDeviceGetTotalEccErrors(self, gpu: dict[str, Any], kind: int, counter: int) -> Any:
        return answer(gpu, "ecc", 0)

    def nvmlDeviceGetPowerUsage(self, gpu: dict[str, Any]) -> Any:
        return answer(gpu, "power", 612_345)

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: dict[str, Any]) -> Any:
        return answer(gpu, "limit", 700_000)

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: dict[str, Any]) -> Any:
        return answer(gpu, "clocks", 0x01 | 0x04 | 0x40)

    def nvmlDeviceGetRemappedRows(self, gpu: dict[str, Any]) -> Any:
        return answer(gpu, "remapped", (0, 0, 0, 0))

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: dict[str, Any]) -> Any:
        return answer(gpu, "compute", [])

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: dict[str, Any]) -> Any:
        return answer(gpu, "graphics", [])

    def nvmlDeviceGetFieldValues(self, gpu: dict[str, Any], fields: list[int]) -> Any:
        action = answer(gpu, "action", 0)
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=action))]


def answer(gpu: dict[str, Any], key: str, default: Any) -> Any:
    value = gpu.get(key, default)
    if isinstance(value, Exception):
        raise value
    return value


def not_supported() -> Exception:
    return pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_a_healthy_gpu_is_read_whole_and_the_library_closed() -> None:
    library = Library({})
    (gpu,) = read_nvml(library).gpus
    assert (gpu.index, gpu.uuid, gpu.name, gpu.driver_version) == (0, "GPU-00000000", "NVIDIA H200", "590.48.01")
    assert (gpu.memory_total_mib, gpu.memory_used_mib) == (143771, 55)
    assert (gpu.utilization_percent, gpu.temperature_c, gpu.mig) == (17, 33, False)
    assert (gpu.pci_bus_id, gpu.usable) == ("00000000:83:00.0", True)
    assert library.open == 0


def test_what_the_driver_does_not_support_is_unknown() -> None:
    refused = dict.fromkeys(
        ("memory", "utilization", "temperature", "pci", "mig", "ecc", "remapped", "action"), not_supported()
    )
    (gpu,) = read_nvml(Library(refused)).gpus
    assert gpu.usable
    assert {gpu.memory_total_mib, gpu.memory_used_mib, gpu.utilization_percent, gpu.temperature_c, gpu.mig} == {
        None
    }


def test_a_unified_memory_of_size_zero_is_unknown() -> None:
    (gpu,) = read_nvml(Library({"memory": SimpleNamespace(total=0, used=0)})).gpus
    assert (gpu.memory_total_mib, gpu.memory_used_mib) == (None, None)


def test_names_may_be_bytes() -> None:
    (gpu,) = read_nvml(Library({"uuid": b"GPU-b", "name": b"NVIDIA L4"})).gpus
    assert (gpu.uuid, gpu.name) == ("GPU-b", "NVIDIA L4")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"ecc": 3}, "3 uncorrectable"),
        ({"action": 1}, "Reset"),
        ({"action": 2}, "reboot this node"),
        ({"action": 99}, "number 99"),
        ({"remapped": (0, 0, 0, 1)}, "row remapping failed"),
        ({"temperature": pynvml.NVMLError(pynvml.NVML_ERROR_RESET_REQUIRED)}, "reset"),
        ({"utilization": pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)}, "GPU is lost"),
    ],
)
def test_a_broken_gpu_is_not_usable_and_says_why(answers: dict[str, Any], words: str) -> None:
    broken, whole = read_nvml(Library(answers, {})).gpus
    assert not broken.usable
    assert words in (broken.reason or "")
    assert whole.usable


@pytest.mark.parametrize("key", ["handle", "uuid"])
def test_a_gpu_without_identity_is_a_finding_and_costs_no_other(key: str) -> None:
    read = read_nvml(Library({}, {key: pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)}, {}))
    assert [gpu.index for gpu in read.gpus] == [0, 2]
    assert [(finding.check, finding.where) for finding in read.findings] == [("gpu-lost", "GPU 1")]


def test_a_uuid_given_twice_counts_once() -> None:
    read = read_nvml(Library({"uuid": "GPU-x"}, {"uuid": "GPU-x"}))
    assert len(read.gpus) == 1
    assert [finding.check for finding in read.findings] == ["gpu-duplicate"]


@pytest.mark.parametrize(
    ("code", "driver_present"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, False),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, False),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, True),
    ],
)
def test_a_library_that_cannot_be_used_says_whether_there_is_a_driver(code: int, driver_present: bool) -> None:
    with pytest.raises(NvmlUnavailable) as raised:
        read_nvml(Library(init=pynvml.NVMLError(code)))
    assert raised.value.driver_present == driver_present


def test_who_holds_memory_is_read_with_the_gpus() -> None:
    def process(pid: int, mib: int | None) -> Any:
        return SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB)

    library = Library(
        {"compute": [process(11, 20480), process(12, None)], "graphics": [process(11, 20480), process(13, 64)]},
        {"compute": pynvml.NVMLError_NotSupported(), "graphics": [process(13, 8)]},
        {},
    )
    table = read_nvml(library)
    first, second, third = (table.processes.of(gpu.uuid) for gpu in table.gpus)
    assert [(one.pid, one.used_mib) for one in first.processes] == [(11, 20480), (12, None), (13, 64)]
    assert first.complete
    assert [one.pid for one in second.processes] == [13]
    assert not second.complete
    assert (third.processes, third.complete) == ((), True)


def test_a_size_that_is_not_available_is_unknown() -> None:
    library = Library({"compute": [SimpleNamespace(pid=11, usedGpuMemory=2**64 - 1)]})
    table = read_nvml(library)
    assert [one.used_mib for one in table.processes.processes] == [None]


def test_the_devices_of_a_cut_gpu_are_read_and_its_empty_slots_are_not() -> None:
    devices = [
        {
            "uuid": "MIG-a",
            "name": "NVIDIA H200 MIG 3g.71gb",
            "memory": SimpleNamespace(total=71424 * MIB, used=1),
        },
        {"uuid": "MIG-b", "name": b"NVIDIA H200 MIG 1g.18gb", "memory": not_supported()},
    ]
    cut, whole = read_nvml(Library({"mig": [1, 1], "devices": devices}, {"devices": devices})).gpus
    assert [(device.uuid, device.profile, device.memory_total_mib) for device in cut.mig_devices] == [
        ("MIG-a", "3g.71gb", 71424),
        ("MIG-b", "1g.18gb", None),
    ]
    assert (whole.mig, whole.mig_devices) == (False, [])
    assert cut.cuda_version == "13.1"


@pytest.mark.parametrize(
    ("memory", "unified"),
    [
        (SimpleNamespace(total=0, used=0), True),
        (pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED), True),
        (pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN), False),
        (SimpleNamespace(total=143771 * MIB, used=0), False),
    ],
)
def test_only_a_gpu_that_has_no_memory_of_its_own_is_of_unified_memory(memory: Any, unified: bool) -> None:
    (gpu,) = read_nvml(Library({"memory": memory})).gpus
    assert gpu.unified_memory == unified


def test_power_and_what_holds_the_clocks_down_are_read() -> None:
    (gpu,) = read_nvml(Library({})).gpus
    assert (gpu.power_w, gpu.power_limit_w, gpu.corrected_ecc) == (612.345, 700.0, 0)
    assert gpu.throttled == ["power", "thermal"]
    (idle,) = read_nvml(Library({"clocks": 0x01})).gpus
    assert idle.throttled == []


def test_what_a_gpu_or_older_bindings_do_not_tell_of_power_is_unknown() -> None:
    refused = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    (gpu,) = read_nvml(Library(dict.fromkeys(("power", "limit", "clocks", "ecc"), refused))).gpus
    assert (gpu.power_w, gpu.power_limit_w, gpu.corrected_ecc, gpu.throttled) == (None, None, None, None)

    class Old(Library):
        def __getattribute__(self, name: str) -> Any:
            if "Power" in name or "EventReasons" in name:
                raise AttributeError(name)
            return super().__getattribute__(name)

        def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: dict[str, Any]) -> Any:
            return 0x08

    (old,) = read_nvml(Old({})).gpus
    assert (old.power_w, old.throttled) == (None, ["hardware"])
