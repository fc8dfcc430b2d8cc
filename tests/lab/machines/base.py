"""The tree that all machines are made from: Debian with what a node has before llmgw, built once and kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.lab.machines.errors import LabError
from tests.lab.machines.needs import PATH
from tests.lab.machines.places import CACHE

SUITE = "bookworm"
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "openssh-client",
    "sudo",
    "ca-certificates",
    "python3",
    "python3-venv",
    "iproute2",
    # The real tools of a fabric, and the library by which they reach a simulated one.
    "infiniband-diags",
    "ibsim-utils",
)
# The machines share neither host keys nor ids, and have no clock of their own to do chores by.
_SETUP = (
    'rm -f "$1"/etc/ssh/ssh_host_*',
    'echo "HostKey /etc/ssh/ssh_host_ed25519_key" > "$1"/etc/ssh/sshd_config.d/lab.conf',
    'chroot "$1" systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer dpkg-db-backup.timer '
    "console-getty.service",
    'rm -rf "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/usr/share/locale/* "$1"/var/cache/apt/*',
    ': > "$1"/etc/machine-id',
)


def base_folder() -> Path:
    """Where this version of the base lies, whether or not it has been built."""
    said = "\n".join((SUITE, *PACKAGES, *_SETUP))
    return CACHE / hashlib.sha256(said.encode()).hexdigest()[:12]


def make_base(tell: Callable[[str], None]) -> Path:
    """The base's folder; half a minute passes where it is built first. Raises LabError.

    It is built beside its place and renamed, so that whoever finds it finds it whole.
    """
    folder = base_folder()
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    tell(f"Building the machines' base in {folder} (once; half a minute and 300 MB) …")
    building = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=CACHE))
    try:
        _bootstrap(building)
        building.chmod(0o755)
        try:
            os.rename(building, folder)
        except OSError:
            # Somebody else has built it meanwhile.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _bootstrap(folder: Path) -> None:
    hooks = [f"--customize-hook={line}" for line in _SETUP]
    done = subprocess.run(
        ["mmdebstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", *hooks, SUITE, str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": PATH},
        timeout=900,
        check=False,
    )
    if done.returncode:
        raise LabError(
            f"mmdebstrap could not build the machines' base in {folder}: {done.stderr.strip()[-600:]}\n"
            "Look whether this machine reaches its Debian mirror (apt-get update)"
        )
