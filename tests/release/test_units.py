"""The unit files: found wherever the program lies, and what systemd takes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.onboarding.control_units import ROUTER_SETTINGS, SOCKET_ADDRESS, Units
from llmgw.onboarding.local_host import LocalHost
from llmgw.release.files import ReleaseError
from llmgw.release.layout import AGENT_UNIT, PROGRAM, UNITS
from llmgw.release.units import UNIT_NAMES, unit_text

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.parametrize("name", UNIT_NAMES)
def test_a_unit_is_found_in_a_checkout(name: str) -> None:
    assert unit_text(name) == (EXAMPLES / name).read_text()


def test_a_frozen_program_has_its_units_where_it_was_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "llmgw" / "_examples"
    folder.mkdir(parents=True)
    (folder / "llmgw-agent.service").write_text("[Unit]\n")
    monkeypatch.setattr(sys, "_MEIPASS", str(tmp_path), raising=False)
    assert unit_text("llmgw-agent.service") == "[Unit]\n"


def test_a_unit_that_is_not_ours_or_not_there_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ReleaseError, match=r"no unit of llmgw, whose units are llmgw-agent\.service"):
        unit_text("../../etc/passwd")
    monkeypatch.setattr("llmgw.release.units.example_folders", lambda: [tmp_path])
    with pytest.raises(ReleaseError, match=r"lacks its unit file llmgw-agent\.service"):
        unit_text("llmgw-agent.service")


def test_systemd_takes_every_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    # The program need not be installed to judge its units: another that is there stands in its place.
    for name in UNIT_NAMES:
        (tmp_path / name).write_text(unit_text(name).replace(PROGRAM, "/bin/true"))
    units = Units(
        LocalHost(tmp_path), listen="[::]:80", routers=3, arguments=["--drain-s=5", "--tls-key=/a $b %c"]
    )
    for path, text in ((SOCKET_ADDRESS, units.socket_text()), (ROUTER_SETTINGS, units.settings_text())):
        place = tmp_path / Path(path).relative_to(UNITS)
        place.parent.mkdir()
        place.write_text(text.replace(PROGRAM, "/bin/true"))
    paths = [str(tmp_path / name) for name in UNIT_NAMES]
    done = subprocess.run([analyze, "verify", *paths], capture_output=True, text=True, timeout=150, check=False)
    said = [line for line in done.stderr.splitlines() if "llmgw" in line]
    assert not said, done.stderr


def test_the_agents_unit_bounds_engines_by_nothing_that_they_need() -> None:
    agent = unit_text(AGENT_UNIT)
    keys = dict(line.split("=", 1) for line in agent.splitlines() if re.match(r"[A-Z]\w+=", line))
    assert keys["KillMode"] == "process"
    assert keys["LimitMEMLOCK"] == "infinity"
    # Each of these would reach the engines: devices, models' folders, setuid nvidia-modprobe, engines' own users.
    for key in ("PrivateTmp", "PrivateDevices", "DevicePolicy", "ProtectSystem", "ProtectHome", "User"):
        assert key not in keys
    for key in ("NoNewPrivileges", "ProtectKernelModules", "RestrictSUIDSGID", "MemoryDenyWriteExecute", "UMask"):
        assert key not in keys
    taken = keys["CapabilityBoundingSet"]
    assert taken.startswith("~")
    # root as another user, locked memory, priorities, modules and device files, other users' processes.
    for needed in (
        "SETUID",
        "SETGID",
        "KILL",
        "IPC_LOCK",
        "SYS_NICE",
        "SYS_MODULE",
        "MKNOD",
        "SYS_PTRACE",
        "SYS_ADMIN",
    ):
        assert f"CAP_{needed}" not in taken


@pytest.mark.parametrize("name", UNIT_NAMES)
def test_a_service_is_ready_when_it_says_so_and_never_given_up(name: str) -> None:
    if not name.endswith(".service"):
        return
    text = unit_text(name)
    for line in ("Type=notify", "StartLimitIntervalSec=0"):
        assert f"\n{line}\n" in text
    assert re.search(r"^WatchdogSec=\d+s$", text, re.MULTILINE)
