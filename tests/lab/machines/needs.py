"""What the lab needs of the machine that it runs on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.lab.machines.places import CACHE
from tests.lab.real_fabric import UMAD2SIM

PACKAGES = "systemd-container mmdebstrap iproute2 openssh-client opensm ibsim-utils infiniband-diags"
PROGRAMS = ("systemd-nspawn", "mmdebstrap", "ip", "ssh", "ssh-keygen", "opensm", "ibsim", "saquery")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def missing() -> str | None:
    """Why there can be no lab here, as a sentence; None when there can."""
    if os.geteuid() != 0:
        return "The lab makes network namespaces and boots machines, and this user is not root: run it with sudo"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if not UMAD2SIM.exists():
        lacking.append(UMAD2SIM.name)
    if lacking:
        return (
            f"The lab needs {', '.join(lacking)}, which this machine lacks: "
            f"apt-get install --no-install-recommends {PACKAGES}"
        )
    if not os.access(_existing(CACHE), os.W_OK):
        return f"{CACHE} cannot be written, where the machines' base is kept: name a folder in LLMGW_LAB_CACHE"
    kernel = Path("/proc/filesystems").read_text().split()
    if "overlay" not in kernel and not Path("/lib/modules").exists():
        return "The kernel of this machine has no overlayfs, of which the machines' disks are made"
    tried = subprocess.run(
        ["unshare", "-mnpf", "sh", "-c", "mount -t tmpfs none /mnt && ip link add lab0 type bridge"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": PATH},
        check=False,
    )
    if tried.returncode != 0:
        return (
            "Root may not mount, or make namespaces and bridges, here; a container must be privileged: "
            f"{tried.stderr.strip()}"
        )
    return None


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
