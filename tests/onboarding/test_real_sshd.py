"""Onboarding through the system's ssh to a real sshd on loopback, as the present user."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.onboarding.errors import OnboardError
from llmgw.onboarding.scripts import script
from llmgw.onboarding.ssh import LARGE_FILES, Script, Ssh
from tests.endtoend.conftest import until
from tests.onboarding.machine import Machine
from tests.ports import free_port

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="sshd or ssh is not installed (openssh-server)"
)


class Sshd:
    """An sshd whose sessions see the machine below a folder; `config` is for `ssh -F` and calls it gpu-a."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.folder = folder
        self._machine = machine
        self.port = free_port()
        self.config = folder / "ssh_config"
        self.known_hosts = folder / "known_hosts"
        self.log = folder / "sshd.log"
        for name in ("host_key", "other_key", "user_key"):
            self._key(name)
        (folder / "authorized_keys").write_text((folder / "user_key.pub").read_text())
        self.configure()
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, *lines: str) -> None:
        """What the client's configuration says beside where things are."""
        (self.config).write_text(
            f"Host gpu-a\n  HostName 127.0.0.1\n  Port {self.port}\n  IdentityFile {self.folder}/user_key\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile none\n"
            + "".join(f"  {line}\n" for line in lines)
        )

    def start(self, *options: str) -> None:
        assert SSHD is not None
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it separates its privileges
        path = f"{self._machine.folder}/bin:{os.environ['PATH']}"
        settings = [
            *(f"Port={self.port}", "ListenAddress=127.0.0.1", f"HostKey={self.folder}/host_key", "PidFile=none"),
            *("StrictModes=no", "UsePAM=no", f"AuthorizedKeysFile={self.folder}/authorized_keys"),
            *("PermitRootLogin=yes", f"SetEnv=LLMGW_ROOT={self._machine.root} PATH={path}", *options),
        ]
        flags = [word for setting in settings for word in ("-o", setting)]
        self._process = subprocess.Popen([SSHD, "-D", "-f", "/dev/null", "-E", str(self.log), *flags])
        until(self._listens, 20)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(10)

    def logins(self) -> int:
        return self.log.read_text().count("Accepted publickey")

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def _key(self, name: str) -> None:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.folder / name)]
        subprocess.run(command, check=True)


@pytest.fixture
def sshd(tmp_path: Path, machine: Machine) -> Iterator[Sshd]:
    folder = tmp_path / "ssh"
    folder.mkdir()
    server = Sshd(folder, machine)
    (machine.path / "ssh").unlink()
    yield server
    server.stop()


def options(sshd: Sshd) -> list[str]:
    return ["--addr", "gpu-a", "--mgmt-addr", "127.0.0.1", "--ssh-config", str(sshd.config)]


def test_a_machine_is_onboarded_over_one_connection_and_its_new_key_is_remembered(
    machine: Machine, pki: Path, sshd: Sshd
) -> None:
    sshd.start()
    done = machine.onboard_here(pki, *options(sshd), "--ssh-user", getpass.getuser())
    assert done.returncode == 0, done.stderr
    assert sshd.logins() == 1
    assert "ssh-ed25519" in sshd.known_hosts.read_text()
    assert machine.etc("agent-key.pem").exists()
    assert machine.left_behind() == []


def test_a_host_key_that_changed_is_refused(machine: Machine, pki: Path, sshd: Sshd) -> None:
    sshd.start()
    other = (sshd.folder / "other_key.pub").read_text()
    sshd.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {other}")
    done = machine.onboard_here(pki, *options(sshd))
    assert done.returncode == 1
    assert f"The host key of gpu-a is not the one remembered in {sshd.known_hosts} line 1" in done.stderr
    assert not machine.etc("ca.pem").exists()
    # What it says to type is right.
    forget = done.stderr.partition("(")[2].partition(")")[0]
    subprocess.run(forget, shell=True, check=True, capture_output=True)
    assert machine.onboard_here(pki, *options(sshd), "--dry-run").returncode == 0


def test_an_unknown_host_key_is_refused_where_ssh_is_configured_to(
    machine: Machine, pki: Path, sshd: Sshd
) -> None:
    sshd.start()
    sshd.configure("StrictHostKeyChecking yes")
    done = machine.onboard_here(pki, *options(sshd))
    assert done.returncode == 1
    assert "The host key of gpu-a is not known here" in done.stderr
    assert not sshd.known_hosts.exists()


def test_a_machine_that_wants_a_password_is_told_as_that(machine: Machine, pki: Path, sshd: Sshd) -> None:
    sshd.start("PubkeyAuthentication=no", "PasswordAuthentication=yes")
    done = machine.onboard_here(pki, *options(sshd))
    assert done.returncode == 1
    assert "wants a password, which is never typed or passed here" in done.stderr


def test_a_machine_without_sshd_is_told_as_that(machine: Machine, pki: Path, sshd: Sshd) -> None:
    done = machine.onboard_here(pki, *options(sshd))
    assert done.returncode == 1
    assert "Nothing listens for ssh at gpu-a" in done.stderr


def test_a_connection_cut_while_a_file_is_sent_leaves_nothing_on_the_machine(
    machine: Machine, sshd: Sshd, tmp_path: Path
) -> None:
    sshd.start()
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(64 * 2**20)

    def cut(sent: int) -> None:
        if sent > 8 * 2**20:
            raise KeyboardInterrupt

    with Ssh("gpu-a", node_id="node01", config=sshd.config) as ssh:
        ssh.connect()
        with pytest.raises(KeyboardInterrupt):
            ssh.run(script("program", {"large": large}, base=LARGE_FILES), sent=cut)
        until(lambda: not machine.left_behind(), 20)


def test_a_machine_that_prints_without_end_is_left_before_it_fills_our_disk(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgw.onboarding.ssh.OUTPUT_BYTES_MAX", 2**20)
    talks = tmp_path / "talks"
    talks.write_text("#!/bin/sh\nyes\n")
    talks.chmod(0o755)
    sshd.start(f"ForceCommand={talks}")
    too_much = pytest.raises(OnboardError, match="node01: the first command printed more than 1 MiB")
    with Ssh("gpu-a", node_id="node01", config=sshd.config) as ssh, too_much:
        ssh.connect()


def test_a_script_that_does_not_end_is_given_up_and_cleans_up_after_itself(machine: Machine, sshd: Sshd) -> None:
    sshd.start()
    with Ssh("gpu-a", node_id="node01", config=sshd.config) as ssh:
        ssh.connect()
        with pytest.raises(OnboardError, match=r"node01: waiting did not end within 0\.5 s"):
            ssh.run(Script("waiting", "sleep 2", {}), timeout_s=0.5)
        until(lambda: not machine.left_behind(), 20)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_leaves_nothing_on_either_side(
    machine: Machine, pki: Path, sshd: Sshd, tmp_path: Path, number: signal.Signals
) -> None:
    sshd.start()
    here = tmp_path / "h"
    here.mkdir()
    slow = machine.folder / "bin" / "update-ca-certificates"
    slow.write_text(f"#!/bin/sh\ntouch {tmp_path}/reached\nsleep 5\n")
    command = [sys.executable, "-m", "llmgw", "onboard-node", *machine.arguments(pki, options(sshd))]
    process = subprocess.Popen(
        command,
        env=machine.env(TMPDIR=str(here)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until((tmp_path / "reached").exists, 30)
    process.send_signal(number)
    said = process.communicate(timeout=20)[1]
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    assert list(here.iterdir()) == []
    until(lambda: not machine.left_behind(), 20)
    assert sshd.logins() == 1
