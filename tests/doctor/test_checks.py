"""On a healthy node nothing is found; a planted fault is found, and nothing but that one."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.doctor import ports, weights, work_dir
from llmgw.doctor.checks import CHECKS
from llmgw.doctor.engine_user import check_engine_user
from llmgw.doctor.examine import examine
from llmgw.doctor.limits import inherited_limits
from llmgw.doctor.packages import RememberedPackages, interpreter_of, owner_of
from llmgw.engines.sim import SimAdapter
from llmgw.hardware.engine_user import Account
from llmgw.messages.findings import Finding
from llmgw.sim.hardware import set_gpu, set_machine, set_port, write_hardware
from tests.doctor.healthy import DAY, OWN_USER, Site
from tests.ports import free_port


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(autouse=True)
def _any_disk_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "ROOM_WARN_BYTES", 0)


def findings(site: Site, *, clock_s: float = 0.0, **changes: Any) -> list[Finding]:
    node = site.node(clock_s=clock_s, **changes)
    found = examine(lambda: node.config, CHECKS, now=node.now).findings
    for finding in found:
        assert finding.where.startswith(f"{node.config.node_id} ")
        assert finding.why or finding.check.startswith(("gpu", "fabric"))
    return found


def own(**settings: str) -> dict[str, str]:
    """`supervisor` in agent.yaml, with engines of this very user."""
    return {"engine_user": OWN_USER, **settings}


def of_range(low: int) -> dict[str, str]:
    return own(work_dir="/tmp", port_range=f"{low}-{low + 2}")


def checks(site: Site, **changes: Any) -> list[str]:
    return [finding.check for finding in findings(site, **changes)]


def test_nothing_is_found_on_a_healthy_node(site: Site) -> None:
    assert findings(site) == []


def test_exactly_the_planted_hardware_faults_are_found(site: Site, tmp_path: Path) -> None:
    hardware = write_hardware(tmp_path / "hw", gpus=8, adapters=2, node="node01")
    set_port(hardware.directory, "mlx5_1", "init")
    set_gpu(hardware.directory, 5, "reset")
    discovery = site.discovery(hardware)
    found = findings(site, discovery=discovery)
    assert [(finding.check, finding.where) for finding in found] == [
        ("gpu-unusable", "node01 GPU 5"),
        ("fabric-no-subnet-manager", "node01 ib-a mlx5_1"),
    ]


@pytest.mark.parametrize(
    ("link_layer", "plant", "expected"),
    [
        ("InfiniBand", lambda d: None, []),
        ("Ethernet", lambda d: None, []),
        ("InfiniBand", lambda d: set_gpu(d, 2, "ecc"), ["gpu-unusable"]),
        ("InfiniBand", lambda d: set_gpu(d, 2, "xid"), ["gpu-unusable"]),
        ("InfiniBand", lambda d: set_gpu(d, 2, "unlinked"), ["gpu-unusable"]),
        ("InfiniBand", lambda d: set_gpu(d, 2, "lost"), ["gpu-lost"]),
        ("InfiniBand", lambda d: set_port(d, "mlx5_0", "down"), ["fabric-port-down"]),
        ("InfiniBand", lambda d: set_port(d, "mlx5_0", "slow"), ["fabric-slow"]),
        ("Ethernet", lambda d: set_port(d, "mlx5_0", "unaddressed"), ["roce-gid"]),
        ("Ethernet", lambda d: set_port(d, "mlx5_0", "down"), ["fabric-port-down"]),
        ("InfiniBand", lambda d: set_machine(d, "memlock"), ["memlock"]),
        ("InfiniBand", lambda d: set_machine(d, "files"), ["open-files"]),
        ("InfiniBand", lambda d: set_machine(d, "no-devices"), ["rdma-devices"]),
        ("InfiniBand", lambda d: set_machine(d, "no-gpudirect"), ["gpudirect"]),
    ],
)
def test_each_fault_of_the_hardware_planted_alone_is_found_alone(
    site: Site, tmp_path: Path, link_layer: str, plant: Callable[[Path], None], expected: list[str]
) -> None:
    hardware = write_hardware(tmp_path / "hw", gpus=4, adapters=2, node="node01", link_layer=link_layer)
    plant(hardware.directory)
    discovery = site.discovery(hardware)
    assert checks(site, discovery=discovery) == expected


def test_a_node_that_cannot_ask_its_infiniband_fabric_is_told_what_to_install_and_to_allow(
    site: Site, tmp_path: Path
) -> None:
    hardware = write_hardware(tmp_path / "hw", gpus=8, adapters=2, node="node01")
    device = hardware.directory / "sys" / "class" / "infiniband_mad" / "umad0"
    device.mkdir(parents=True)
    (device / "ibdev").write_text("mlx5_0\n")
    (device / "port").write_text("1\n")
    discovery = site.discovery(hardware) | {"saquery": "no-such-tool"}
    (missing,) = findings(site, discovery=discovery)
    assert (missing.check, missing.severity, missing.where) == ("fabric-tools", "warning", "node01 no-such-tool")
    assert "apt-get install infiniband-diags" in missing.remedy
    one_fabric = [{"name": "ib-a", "hcas": ["mlx5_0"], "rate_gbps": 400}]
    (shut,) = findings(site, discovery=site.discovery(hardware), fabrics=one_fabric)
    assert (shut.check, shut.severity) == ("fabric-access", "warning")
    assert "/dev/infiniband/umad0" in shut.what
    roce = write_hardware(tmp_path / "roce", gpus=8, adapters=2, node="node01", link_layer="Ethernet")
    assert checks(site, discovery=site.discovery(roce) | {"saquery": "no-such-tool"}) == []


def python_that_prints(path: Path, answer: str, code: int = 0) -> str:
    path.write_text(f"#!/bin/sh\nprintf '%s\\n' '{answer}'\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


def test_an_engines_packages_are_asked_of_its_own_interpreter(site: Site, tmp_path: Path) -> None:
    def found(**engines: Any) -> list[Finding]:
        return findings(site, engines=engines)

    whole = python_that_prints(tmp_path / "whole", json.dumps({"sglang": "0.5.23", "torch": "2.11.0+cu130"}))
    assert found(sglang={"python": whole}) == []
    (missing,) = found(sglang={"python": sys.executable})
    assert (missing.check, missing.where, missing.severity) == (
        "engine-package",
        "node01 engines.sglang",
        "error",
    )
    assert missing.what == f"{sys.executable} has no package sglang and no torch"
    assert missing.remedy == f"{sys.executable} -m pip install sglang"
    broken = python_that_prints(tmp_path / "broken", "No module named encodings", 1)
    (finding,) = found(sglang={"python": broken})
    assert finding.check == "engine-python"
    assert "does not run: No module named encodings" in finding.what
    (finding,) = found(sglang={"python": "/nonexistent/python"})
    assert finding.check == "engine-program"
    cpu = python_that_prints(tmp_path / "cpu", json.dumps({"sglang": "0.5.23", "torch": "2.11.0+cpu"}))
    (finding,) = found(sglang={"python": cpu})
    assert (finding.check, finding.severity) == ("engine-cpu-build", "warning")


def test_vllms_interpreter_is_the_one_in_the_first_line_of_its_program(site: Site, tmp_path: Path) -> None:
    python = python_that_prints(tmp_path / "python", json.dumps({"vllm": None, "torch": "2.11.0+cu130"}))
    (tmp_path / "vllm").write_text(f"#!{python}\n")
    (tmp_path / "vllm").chmod(0o755)
    assert interpreter_of(str(tmp_path / "vllm")) == python
    found = findings(site, engines={"vllm": {"bin": str(tmp_path / "vllm")}})
    assert [finding.what for finding in found] == [f"{python} has no package vllm"]
    (tmp_path / "env").write_text("#!/usr/bin/env sh\n")
    assert interpreter_of(str(tmp_path / "env")) == shutil.which("sh")
    assert interpreter_of(sys.executable) is None


def test_a_program_that_fails_to_start_is_found(site: Site, tmp_path: Path) -> None:
    text = "error while loading shared libraries: libcudart.so.13: cannot open shared object file"
    broken = python_that_prints(tmp_path / "llama-server", text, 127)
    (finding,) = findings(site, engines={"llamacpp": {"bin": broken}})
    assert finding.check == "engine-program"
    assert "libcudart.so.13" in finding.what
    assert f"ldd {broken}" in finding.remedy
    (tmp_path / "other").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(57))
    (tmp_path / "other").chmod(0o755)
    (finding,) = findings(site, engines={"llamacpp": {"bin": str(tmp_path / "other")}})
    assert (finding.check, "is not a program for this machine" in finding.what) == ("engine-program", True)


def test_an_agent_starts_an_engine_again_only_when_it_failed_or_changed(site: Site, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text(f"#!/bin/sh\necho x >>{tmp_path}/runs\ntest -e {tmp_path}/whole\n")
    program.chmod(0o755)
    node = site.node(engines={"llamacpp": {"bin": str(program)}})
    packages = RememberedPackages()

    def runs() -> int:
        return len((tmp_path / "runs").read_text().splitlines())

    assert [[f.check for f in packages.check(node)] for _ in range(2)] == [["engine-program"]] * 2
    (tmp_path / "whole").touch()
    assert (packages.check(node), runs()) == ([], 3)
    assert (packages.check(node), runs()) == ([], 3)
    os.utime(program, ns=(1, 1))
    assert (packages.check(node), runs()) == ([], 4)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_what_others_may_change_is_not_run_with_roots_rights(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.symlink_to("/bin/sh")
    assert owner_of(str(program)) is None
    os.chown(program.parent, 65534, 65534)
    assert owner_of(str(program)) == (65534, 65534)


def test_too_little_room_for_weights_is_found_once_a_disk(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "ROOM_WARN_BYTES", 2**70)
    (finding,) = findings(site)
    assert (finding.check, finding.severity) == ("weights-room", "warning")
    assert checks(site, engines={"sim": {"enabled": True}}) == []


def test_the_limits_are_those_of_the_agent_that_runs_or_of_its_unit(tmp_path: Path) -> None:
    assert inherited_limits(str(tmp_path), show=lambda: "LoadState=not-found\n") is None
    shown = "LimitMEMLOCK=infinity\nLimitMEMLOCKSoft=65536\nLimitNOFILE=524288\nLoadState=loaded\n"
    assert inherited_limits(str(tmp_path), show=lambda: shown) == {
        "Max locked memory": (65536, None),
        "Max open files": (524288, 524288),
    }
    (tmp_path / "agent.lock").write_text(f"{os.getpid()}\n")
    of_agent = inherited_limits(str(tmp_path), show=lambda: shown)
    assert of_agent is not None
    assert of_agent["Max open files"][1] == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_a_key_that_others_may_read_is_found(site: Site) -> None:
    files = site.issue("node01", "127.0.0.1", age_days=2)
    os.chmod(files["key"], 0o640)
    (finding,) = findings(site, tls=files)
    assert (finding.check, finding.severity) == ("key-open", "error")
    assert finding.remedy.startswith(f"chmod 600 {files['key']}")


def test_files_that_are_not_there_are_one_finding_each(site: Site, tmp_path: Path) -> None:
    missing = {name: str(tmp_path / name) for name in ("ca", "cert", "key")}
    found = findings(site, tls=missing)
    assert sorted(finding.check for finding in found) == [
        "certificate-unreadable",
        "certificate-unreadable",
        "key-unreadable",
    ]
    assert checks(site, tls=site.tls | {"key": missing["key"]}) == ["key-unreadable"]


def test_a_certificate_that_ends_soon_is_a_warning_before_it_is_an_error(site: Site) -> None:
    (soon,) = findings(site, tls=site.issue("node01", "127.0.0.1", age_days=345))
    assert (soon.check, soon.severity) == ("certificate-expiring", "warning")
    assert "20 days" in soon.what
    (sooner,) = findings(site, tls=site.issue("node01", "127.0.0.1", age_days=363))
    assert (sooner.check, sooner.severity) == ("certificate-expiring", "error")
    (over,) = findings(site, tls=site.issue("node01", "127.0.0.1", age_days=400))
    assert (over.check, over.severity) == ("certificate-expired", "error")


def test_a_key_of_another_certificate_is_found(site: Site) -> None:
    other = site.issue("node02", "127.0.0.1")
    (finding,) = findings(site, tls=site.tls | {"key": other["key"]})
    assert finding.check == "certificate-unusable"
    assert "does not belong to" in finding.what


def test_another_authoritys_root_is_found(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path / "other")
    (finding,) = findings(site, tls=site.tls | {"ca": other.tls["ca"]})
    assert finding.check == "certificate-unusable"
    assert "another authority" in finding.what


def test_a_certificate_of_another_node_or_address_is_found(site: Site) -> None:
    (other,) = findings(site, tls=site.issue("node02", "127.0.0.1"))
    assert other.check == "certificate-name"
    assert other.remedy.startswith("set node_id: node02 in agent.yaml")
    (elsewhere,) = findings(site, tls=site.issue("node01", "10.9.9.9"))
    assert elsewhere.check == "certificate-address"
    assert "for 10.9.9.9, and engines listen on 127.0.0.1" in elsewhere.what
    server = str(site.folder / "server" / "server.pem")
    key = str(site.folder / "server" / "server-key.pem")
    assert checks(site, tls=site.tls | {"cert": server, "key": key}) == ["certificate-foreign"]


def test_an_address_that_this_machine_lacks_is_found_once(site: Site) -> None:
    (finding,) = findings(site, mgmt_addr="10.255.254.253", tls=site.issue("node01", "10.255.254.253"))
    assert finding.check == "address-missing"
    assert "10.255.254.253 is not an address of this machine" in finding.what
    assert finding.remedy == "Correct mgmt_addr in agent.yaml"


def test_a_loopback_address_for_a_server_elsewhere_is_found(site: Site) -> None:
    found = checks(site, server="https://gateway.invalid:8443")
    assert sorted(found) == ["address-loopback", "server-unreachable"]


def test_engines_that_cannot_run_and_none_at_all_are_found(site: Site) -> None:
    (missing,) = findings(site, engines={"llamacpp": {"bin": "/nonexistent/llama-server"}})
    assert (missing.check, missing.where) == ("engine-program", "node01 engines.llamacpp")
    assert missing.what == "the program /nonexistent/llama-server does not exist"
    (none,) = findings(site, engines={})
    assert (none.check, none.severity) == ("engine-none", "warning")


def test_too_few_free_ports_are_found(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[socket.socket] = []
    try:
        for low in range(22000, 30000, 3):
            try:
                taken = [socket.create_server(("127.0.0.1", low + at)) for at in range(2)]
                break
            except OSError:
                continue
        (finding,) = findings(site, supervisor=of_range(low))
        assert (finding.check, finding.severity) == ("ports-few", "error")
        assert "of 3 ports are free on 127.0.0.1" in finding.what
    finally:
        for sock in taken:
            sock.close()
    monkeypatch.setattr(ports, "PORTS_WANTED", 3)
    assert checks(site, supervisor=of_range(low)) == []


def test_a_work_dir_that_cannot_be_used_is_found(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (finding,) = findings(site, supervisor=own(work_dir=str(tmp_path / "file" / "work")))
    assert finding.check == "work-dir"
    assert f"{tmp_path / 'file'} is no folder" in finding.what
    access = os.access
    monkeypatch.setattr(work_dir.os, "access", lambda path, mode: path != tmp_path and access(path, mode))
    (finding,) = findings(site, supervisor=own(work_dir=str(tmp_path / "new" / "work")))
    assert f"be made: {tmp_path} is not writable" in finding.what
    assert not (tmp_path / "new").exists()


def test_a_full_disk_is_found(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_dir, "ROOM_WARN_BYTES", 2**70)
    (finding,) = findings(site)
    assert (finding.check, finding.severity) == ("work-dir-full", "warning")


def test_a_server_that_is_not_there_is_found(site: Site) -> None:
    port = free_port()
    (finding,) = findings(site, server=f"https://127.0.0.1:{port}")
    assert finding.check == "server-unreachable"
    assert finding.what == f"Nothing listens at 127.0.0.1:{port}"
    assert "agents.listen" in finding.remedy


def test_a_server_certificate_without_the_dialled_name_is_told_with_those_it_has(
    site: Site, tmp_path: Path
) -> None:
    named = Site(tmp_path / "named", server_hosts=("gw.lan",))
    (finding,) = findings(named)
    assert finding.check == "server-unreachable"
    assert "does not name 127.0.0.1 but only gw.lan" in finding.what


def test_a_revoked_node_learns_it_from_the_server(site: Site) -> None:
    files = site.issue("node07", "127.0.0.1")
    assert checks(site, node_id="node07", tls=files) == []
    site.authority.revoke("node07", site.now)
    (finding,) = findings(site, node_id="node07", tls=files)
    assert finding.check == "server-refuses"
    assert "revoked" in finding.what


def test_a_clock_that_is_off_is_found(site: Site) -> None:
    (behind,) = findings(site, clock_s=-60)
    assert (behind.check, behind.severity) == ("clock", "warning")
    assert re.search(r"is (59|60|61) s behind the server's", behind.what)
    (ahead,) = findings(site, clock_s=DAY)
    assert (ahead.check, ahead.severity) == ("clock", "error")


def test_an_engine_that_can_take_no_key_is_worth_knowing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimAdapter, "takes_key", False)
    (finding,) = findings(site)
    assert (finding.check, finding.severity, finding.where) == ("engine-open", "info", "node01 engines.sim")
    assert "reach TCP ports 21000-21999" in finding.remedy


def test_a_user_for_engines_that_cannot_be_used_is_found(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = findings(site, supervisor=own(engine_user="no-such-user"))
    assert (finding.check, finding.severity) == ("engine-user", "error")
    assert "no such user" in finding.what
    assert finding.remedy.startswith("make it with useradd")
    if os.geteuid() != 0:
        return
    monkeypatch.setattr("llmgw.hardware.engine_user.DEFAULT_ENGINE_USER", "no-such-user")
    (finding,) = findings(site, supervisor={"work_dir": "/tmp"})
    assert (finding.check, finding.severity) == ("engine-user-root", "info")
    monkeypatch.setattr(Account, "closed_devices", lambda account: ["/dev/infiniband/uverbs0"])
    monkeypatch.setattr(Account, "cannot_run", lambda account, program: False)
    (finding,) = findings(site, supervisor={"work_dir": "/tmp", "engine_user": "nobody"})
    assert (finding.check, finding.severity) == ("engine-user-devices", "warning")
    assert finding.what == "the user nobody may not open /dev/infiniband/uverbs0"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts engines as another user")
def test_folders_and_programs_that_the_engines_user_does_not_get_to_are_found(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Account, "closed_devices", lambda account: [])
    with tempfile.TemporaryDirectory() as place:
        closed = Path(place) / "closed"
        closed.mkdir(mode=0o700)
        program = closed / "llama-server"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        settings: dict[str, Any] = {
            "engines": {"llamacpp": {"bin": str(program)}},
            "weights": {"dir": str(closed / "weights")},
            "supervisor": {"work_dir": str(closed / "state" / "work"), "engine_user": "nobody"},
        }
        found = check_engine_user(site.node(**settings))
        assert {(each.check, each.severity, each.where) for each in found} == {
            ("engine-user-folders", "error", f"node01 supervisor.work_dir {closed}/state/work"),
            ("engine-user-folders", "error", f"node01 weights.dir {closed}/weights"),
            ("engine-user-program", "error", "node01 engines.llamacpp"),
        }
        assert f"the user nobody does not get through {closed}" in [each.what for each in found]
        Path(place).chmod(0o711)
        closed.chmod(0o711)
        assert check_engine_user(site.node(**settings)) == []
