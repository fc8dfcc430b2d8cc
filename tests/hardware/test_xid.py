"""Xid errors condemn a GPU from the kernel's log until the driver takes them back."""

from __future__ import annotations

import os
from pathlib import Path

from llmgw.hardware.xid import Xid, XidLog, condemn, note
from llmgw.messages.agent import Gpu

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
