"""Xid errors condemn a GPU from the kernel's log until the driver takes them back."""

from __future__ import annotations

import os
from pathlib import Path

from llmgw.hardware.xid import Xid, XidLog, condemn, count, note, with_xids, xid_findings
from llmgw.messages.agent import XIDS_PER_GPU_MAX, Gpu

LOST = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def condemned(*lines: str) -> dict[str, int]:
    found: dict[str, Xid] = {}
    for line in lines:
        note(found, line)
    return {device: xid.code for device, xid in found.items()}


def test_a_fatal_xid_condemns_its_gpu_and_no_other() -> None:
    assert condemned(LOST) == {"0000:1b:00": 79}
    assert condemned("4,1234,98765,-;NVRM: Xid (PCI:0009:01:00.0): 119, pid=0, Timeout") == {"0009:01:00": 119}


def test_what_a_program_did_wrong_condemns_nothing() -> None:
    assert condemned("NVRM: Xid (PCI:0000:1b:00): 31, pid=12, MMU Fault", "NVRM: Xid 79", "hello") == {}


def test_the_driver_withdraws_or_is_loaded_anew() -> None:
    changed = "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to "
    assert condemned(LOST, changed + "0x0 (None)") == {}
    assert condemned(changed + "0x2 (Node Reboot Required)") == {"0000:1b:00": 154}
    assert condemned(LOST, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  590.48.01") == {}


def test_a_log_is_followed_and_one_that_began_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    log = XidLog(path)
    assert log.condemned() == {}
    path.write_text(LOST + "\n")
    assert list(log.condemned()) == ["0000:1b:00"]
    with path.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:2b:00): 48, DBE\n")
    assert list(log.condemned()) == ["0000:1b:00", "0000:2b:00"]
    path.write_text("")
    assert log.condemned() == {}


def test_what_is_no_log_is_no_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/null"), Path("/dev/kmsg")):
        XidLog(path).condemned()


def test_a_condemned_gpu_is_not_usable_and_says_what_to_do() -> None:
    gpus = [Gpu(index=n, uuid=f"GPU-{n}", name="x", pci_bus_id=f"00000000:{n + 1}B:00.0") for n in range(2)]
    gpus.append(Gpu(index=2, uuid="GPU-2", name="x"))
    first, second, third = condemn(gpus, {"0000:1b:00": Xid(79, "it has fallen off the bus")})
    assert (first.usable, second.usable, third.usable) == (False, True, True)
    assert "Xid 79" in (first.reason or "")
    assert "reboot" in (first.reason or "")


MMU = "6,1234,98765,-;NVRM: Xid (PCI:0000:1b:00): 31, pid=12, name=python3, MMU Fault"
REMAP = (
    "NVRM: Xid (PCI:0000:1B:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping"
)


def test_every_xid_is_counted_by_its_gpu_until_the_driver_is_loaded_anew(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    log = XidLog(path)
    log.condemned()
    assert log.counts() is None, "a log that cannot be read says nothing of any GPU"
    path.write_text(f"{MMU}\n{MMU}\n{LOST}\nhello\n")
    log.condemned()
    assert log.counts() == {"0000:1b:00": {31: 2, 79: 1}}
    with path.open("a") as file:
        file.write("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  590.48.01\n" + MMU + "\n")
    log.condemned()
    assert log.counts() == {"0000:1b:00": {31: 1}}


def test_a_log_full_of_other_xids_and_devices_is_bounded() -> None:
    counts: dict[str, dict[int, int]] = {}
    for number in range(1000):
        count(counts, f"NVRM: Xid (PCI:0000:1b:00): {number}, pid=1")
        count(counts, f"NVRM: Xid (PCI:{number:04x}:2b:00): 31, pid=1")
    assert len(counts) == 64
    assert len(counts["0000:1b:00"]) == XIDS_PER_GPU_MAX


def test_a_gpu_without_xids_has_none_and_of_one_without_a_bus_id_it_is_unknown() -> None:
    gpus = [Gpu(index=n, uuid=f"GPU-{n}", name="x", pci_bus_id=f"00000000:{n + 1}B:00.0") for n in range(2)]
    gpus.append(Gpu(index=2, uuid="GPU-2", name="x"))
    told = with_xids(gpus, {"0000:1b:00": {31: 2}})
    assert [gpu.xids for gpu in told] == [{31: 2}, {}, None]
    assert [gpu.xids for gpu in with_xids(gpus, None)] == [None, None, None]


def test_an_xid_that_a_gpu_survived_is_a_finding_that_says_what_to_do() -> None:
    counts: dict[str, dict[int, int]] = {}
    for line in (MMU, REMAP, REMAP):
        note({}, line)
        count(counts, line)
    gpu = Gpu(index=3, uuid="GPU-3", name="x", pci_bus_id="00000000:1B:00.0")
    (finding,) = xid_findings(with_xids([gpu], counts))
    assert (finding.check, finding.severity, finding.where) == ("gpu-xid", "warning", "GPU 3")
    assert "Xid 63 for GPU 3 2 times: a row of its memory waits to be remapped" in finding.what
    assert "nvidia-smi -i 3 --gpu-reset" in finding.remedy
    condemned_too = condemn(with_xids([gpu], counts), {"0000:1b:00": Xid(79, "it has fallen off the bus")})
    assert xid_findings(condemned_too) == [], "it is not usable, which says more"
