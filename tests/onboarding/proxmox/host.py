"""Makes the folder of a Proxmox host for a test, and runs `llmgw provision-node` on it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer
import typer.main

from llmgw.cli.provision import provision_node
from llmgw.config.errors import SentenceError
from tests.onboarding.proxmox.programs import GIB
from tests.ports import free_port

CHECKOUT = Path(__file__).parent.parent.parent.parent
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl root@pve1: of the host"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ6nGdxBq6Mtmr8sYI1NCFcbUaB8uvFDd3jL3Rr0WVYQ alice"
GPU, SOUND, HCA, OTHER_HCA = "0000:41:00.0", "0000:41:00.1", "0000:61:00.0", "0000:62:00.0"
NVME, BRIDGE_NIC = "0000:01:00.0", "0000:02:00.0"


def qcow2(size_bytes: int, backing: int = 0) -> bytes:
    """A file that begins as qcow2 version 3 does, with a disk of that size."""
    head = b"QFI\xfb" + (3).to_bytes(4) + backing.to_bytes(8) + bytes(4) + (16).to_bytes(4)
    return (head + size_bytes.to_bytes(8)).ljust(4096, b"\0")


class ProxmoxHost:
    """`node05` is provisioned with `run()`; everything that it may be refused for can be put in place before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.home = folder / "home"
        self.configs = self.root / "etc/pve/nodes/pve1/qemu-server"
        self.image = folder / "debian-12-generic-amd64.qcow2"
        for each in ("bin", "volumes/local-lvm", "running", "home/.ssh"):
            (folder / each).mkdir(parents=True)
        for name in ("qm", "pvesh", "pvesm", "ping"):
            program = folder / "bin" / name
            program.write_text(
                f"#!{sys.executable} -S\nimport sys\nsys.path.insert(0, {str(CHECKOUT)!r})\n"
                "from tests.onboarding.proxmox.programs import main\nmain()\n"
            )
            program.chmod(0o755)
        for name, text in {"faults.json": "{}", "answering": "", "calls": "", "release": "8.4"}.items():
            (folder / name).write_text(text)
        self.bridges([{"iface": "vmbr0", "type": "bridge", "active": 1}])
        self.storages(
            {
                "local": {"path": "/var/lib/vz", "content": "iso,vztmpl,backup,snippets", "avail": 50 * GIB},
                "local-lvm": {"path": "/dev/pve", "content": "images,rootdir", "avail": 500 * GIB},
            }
        )
        self._make_root()
        self.image.write_bytes(qcow2(2 * GIB))
        digest = hashlib.sha512(self.image.read_bytes()).hexdigest()
        (folder / "SHA512SUMS").write_text(f"{digest}  {self.image.name}\n")
        (self.home / ".ssh/authorized_keys").write_text(f"# who may log in\n{KEY}\n")
        self.port = free_port()
        self.ssh_port(self.port)

    def _make_root(self) -> None:
        for each in (
            "etc/pve/nodes/pve1/qemu-server",
            "etc/pve/nodes/pve1/lxc",
            "etc/pve/nodes/pve2/qemu-server",
        ):
            (self.root / each).mkdir(parents=True)
        (self.root / "etc/pve/local").symlink_to("nodes/pve1")
        self.file("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n")
        self.file("proc/meminfo", f"MemTotal: {256 * 2**20} kB\nMemAvailable: {200 * 2**20} kB\n")
        self.file("proc/cpuinfo", "".join(f"processor\t: {n}\n" for n in range(64)))
        self.file(
            "proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
            "vmbr0\t00000000\t0100007F\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
        )
        self.file("sys/class/net/vmbr0/bridge/bridge_id", "8000.001122334455\n")
        self.file("sys/class/iommu/dmar0/uevent", "")
        for node in (0, 1):
            self.file(f"sys/devices/system/node/node{node}/meminfo", f"Node {node} MemFree: {100 * 2**20} kB\n")
            for size in (2048, 1048576):
                pages = f"sys/devices/system/node/node{node}/hugepages/hugepages-{size}kB/free_hugepages"
                self.file(pages, "0\n")
                self.file(f"sys/kernel/mm/hugepages/hugepages-{size}kB/free_hugepages", "0\n")
        self.device(GPU, "030200", "15", driver="nouveau")
        self.device(SOUND, "040300", "15", driver="snd_hda_intel")
        self.device(HCA, "020700", "30", driver="mlx5_core")
        self.device(OTHER_HCA, "020700", "31", driver="mlx5_core")
        self.device(NVME, "010802", "2", driver="nvme")
        self.device(BRIDGE_NIC, "020000", "3", driver="igb")
        self.file(f"sys/bus/pci/devices/{BRIDGE_NIC}/net/eno1/operstate", "up\n")
        (self.root / f"sys/bus/pci/devices/{BRIDGE_NIC}/net/eno1/master").symlink_to("../../../vmbr0")

    def file(self, path: str, text: str) -> None:
        """A file of the host."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def device(self, address: str, kind: str, group: str | None, driver: str = "") -> None:
        """A PCI device: `kind` is its class's six hex digits."""
        base = f"sys/bus/pci/devices/{address}"
        self.file(f"{base}/class", f"0x{kind}\n")
        self.file(f"{base}/vendor", "0x10de\n")
        for name, target in (("iommu_group", group), ("driver", driver)):
            link = self.root / base / name
            link.unlink(missing_ok=True)
            if target:
                link.symlink_to(f"../../../{name}s/{target}")

    def virtual_function(self, physical: str, virtual: str) -> None:
        """SR-IOV: one device is a virtual function of another."""
        devices = self.root / "sys/bus/pci/devices"
        (devices / physical / "virtfn0").symlink_to(f"../{virtual}")
        (devices / virtual / "physfn").symlink_to(f"../{physical}")

    def guest(self, vmid: int, text: str, node: str = "pve1", kind: str = "qemu-server") -> None:
        """Another VM or container."""
        self.file(f"etc/pve/nodes/{node}/{kind}/{vmid}.conf", text)

    def storages(self, rows: dict[str, dict[str, Any]]) -> None:
        """All storages of the host."""
        usual = {"enabled": 1, "active": 1, "type": "dir", "shared": 0, "total": 10**12, "used": 0}
        text = json.dumps({name: {**usual, **row} for name, row in rows.items()})
        (self.folder / "storages.json").write_text(text)

    def bridges(self, rows: list[dict[str, Any]]) -> None:
        """What /nodes/NODE/network lists."""
        (self.folder / "bridges.json").write_text(json.dumps(rows))

    def fails(self, **faults: str) -> None:
        """How commands of `qm` fail: create="before", start="after", …"""
        (self.folder / "faults.json").write_text(json.dumps(faults))

    def ssh_port(self, port: int) -> None:
        """Where started VMs listen; 0: nowhere."""
        (self.folder / "ssh_port").write_text(str(port))

    def state(self) -> dict[str, str]:
        """All that a VM consists of on this host, and all that a run leaves in its root but locks and images."""
        found = {}
        for folder in ("root", "volumes", "running"):
            for path in sorted((self.folder / folder).rglob("*")):
                name = str(path.relative_to(self.folder))
                kept = name.startswith(
                    ("root/var/lib/vz/snippets", "root/var/lib/vz/llmgw-images", "root/run/llmgw-provision/lock")
                )
                if path.is_file() and not kept:
                    found[name] = path.read_text(errors="replace")
        return found

    def calls(self, *program: str) -> list[list[str]]:
        """The commands that were called, in order: all, or those that begin so."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [call for call in map(json.loads, lines) if call[: len(program)] == list(program)]

    def changes(self) -> list[str]:
        """The names of `qm`'s commands that change something, in order."""
        return [call[1] for call in self.calls("qm") if call[1] not in ("config", "status")]

    def config(self, vmid: int = 105) -> dict[str, str]:
        """A VM's settings."""
        text = (self.configs / f"{vmid}.conf").read_text()
        return dict(line.split(": ", 1) for line in text.splitlines())

    def arguments(self, *more: str, ip: str = "127.0.55.5/8", image: bool = True) -> list[str]:
        """The command line for node05, `more` at its end."""
        usual = ["--vmid", "105", "--name", "node05", "--ip", ip, "--ssh-port", str(self.port), "--timeout", "20"]
        if image:
            usual += ["--image", str(self.image)]
        return [*usual, *more]

    def environment(self, **more: str) -> dict[str, str]:
        """What a process on this host has."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LLMGW_")}
        return {
            **kept,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "PYTHONPATH": str(CHECKOUT),
            "LLMGW_PROVISION_ROOT": str(self.root),
            **more,
        }

    def command(self, *more: str, **options: Any) -> list[str]:
        """`llmgw provision-node` for node05, for another process."""
        return [sys.executable, "-m", "llmgw", "provision-node", *self.arguments(*more, **options)]

    def run(self, *more: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """`llmgw provision-node` for node05."""
        environment = options.pop("environment", {})
        return subprocess.run(
            self.command(*more, **options),
            cwd=self.folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=150,
        )

    def refusal(self, *more: str, **options: Any) -> str:
        """The same in this process, which is quicker: what it is refused with. Something must be wrong."""
        command = typer.main.get_command(_app())
        before = dict(os.environ)
        os.environ.update(self.environment(**options.pop("environment", {})))
        try:
            command.main(self.arguments(*more, **options), standalone_mode=False)
        except SentenceError as error:
            return str(error)
        finally:
            os.environ.clear()
            os.environ.update(before)
        raise AssertionError("it was not refused")

    def start(self, *more: str) -> subprocess.Popen[str]:
        """The same, left running."""
        return subprocess.Popen(
            self.command(*more),
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End what started VMs left running: their listeners look for this."""
        for path in (self.folder / "running").iterdir():
            path.unlink()


def _app() -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command()(provision_node)
    return app
