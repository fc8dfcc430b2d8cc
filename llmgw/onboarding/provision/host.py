"""The Proxmox host's own files, below a root that is a parameter: guests, memory, processors, routes.

/etc/pve is pmxcfs (the Proxmox cluster file system): every host of the cluster shows every guest's file there,
`nodes/NODE/qemu-server/VMID.conf` and `nodes/NODE/lxc/VMID.conf`, running or not.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from llmgw.onboarding.provision.errors import ProvisionError
from llmgw.onboarding.provision.vm_configs import VmConfig, read_config, read_mappings
from llmgw.onboarding.provision.wanted import MIB, Address, Interface

_FOLDERS = {"qemu-server": "qemu", "lxc": "lxc"}


@dataclass(frozen=True, slots=True)
class NumaNode:
    """Memory of one NUMA node of the host: bytes free, and free pages by their size in KiB."""

    number: int
    free_bytes: int
    free_pages: dict[int, int]


class Host:
    """Facts of this host. Methods raise ProvisionError when the host is no Proxmox host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pve = root / "etc/pve"

    def node_name(self) -> str:
        """This host's name in its cluster: what /etc/pve/local points to."""
        try:
            return (self.pve / "local").readlink().name
        except OSError:
            if not self.pve.is_dir():
                raise ProvisionError(
                    f"{self.pve} is not there: run this on the Proxmox VE host itself, as root, with the service "
                    "pve-cluster running."
                ) from None
            return socket.gethostname().partition(".")[0]

    def guests(self) -> list[VmConfig]:
        """Every VM and container of the cluster."""
        found = []
        for path in sorted((self.pve / "nodes").glob("*/*/*.conf")):
            kind = _FOLDERS.get(path.parent.name)
            if kind is None or not path.stem.isdigit():
                continue
            try:
                text = path.read_text(errors="replace")
            except FileNotFoundError:
                continue  # moved or removed meanwhile
            except OSError as error:
                raise ProvisionError(
                    f"{path} cannot be read ({error.strerror}), so what is taken is not known; run this as root."
                ) from None
            found.append(read_config(int(path.stem), path.parent.parent.name, kind, text))
        return found

    def mappings(self, node: str) -> dict[str, list[str]]:
        """The PCI mappings of the cluster, as far as they name devices of this node."""
        text = self._read("etc/pve/mapping/pci.cfg")
        return read_mappings(text, node) if text else {}

    def waiting_for(self, vmid: int) -> list[tuple[str, str]]:
        """(what the cluster still does with a VMID whose guest is gone, the command that ends it).

        Sections of section config files (pve-common, PVE/SectionConfig.pm): `vm: 105` and `local: 105-0`.
        """
        found = []
        for kind, number in re.findall(
            r"^(vm|ct):[ \t]*(\d+)[ \t]*$", self._read("etc/pve/ha/resources.cfg") or "", re.MULTILINE
        ):
            if int(number) == vmid:
                found.append(("high availability", f"ha-manager remove {kind}:{vmid}"))
        for number, job in re.findall(
            r"^local:[ \t]*(\d+)-(\d+)[ \t]*$", self._read("etc/pve/replication.cfg") or "", re.MULTILINE
        ):
            if int(number) == vmid:
                found.append(("replication", f"pvesr delete {vmid}-{job}"))
        return found

    def available_bytes(self) -> int:
        """Memory that a new process can have without anybody being pushed out: proc(5), MemAvailable."""
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", self._read("proc/meminfo") or "", re.MULTILINE)
        if found is None:
            raise ProvisionError(f"{self.root / 'proc/meminfo'} does not tell MemAvailable.")
        return int(found[1]) * 1024

    def processors(self) -> int:
        """Processors that Linux runs on here."""
        return len(re.findall(r"^processor\s*:", self._read("proc/cpuinfo") or "", re.MULTILINE))

    def numa_nodes(self) -> list[NumaNode]:
        """The host's NUMA nodes in order: Documentation/ABI/stable/sysfs-devices-node."""
        found = []
        for folder in sorted((self.root / "sys/devices/system/node").glob("node[0-9]*")):
            memory = self._read_at(folder / "meminfo") or ""
            # What is in the page cache becomes free when pages are made (drivers/base/node.c has the words).
            free_kib = sum(
                map(int, re.findall(r"(?:MemFree|Active\(file\)|Inactive\(file\)):\s+(\d+) kB", memory))
            )
            pages = {}
            for each in folder.glob("hugepages/hugepages-*kB"):
                count = (self._read_at(each / "free_hugepages") or "0").strip()
                pages[int(each.name[len("hugepages-") : -2])] = int(count) if count.isdigit() else 0
            found.append(NumaNode(int(folder.name[4:]), free_kib * 1024, pages))
        return sorted(found, key=lambda node: node.number)

    def page_sizes_mib(self) -> set[int]:
        """The sizes of hugepages that the kernel has: Documentation/admin-guide/mm/hugetlbpage.rst."""
        folders = (self.root / "sys/kernel/mm/hugepages").glob("hugepages-*kB")
        return {int(folder.name[len("hugepages-") : -2]) * 1024 // MIB for folder in folders}

    def bridges(self) -> set[str]:
        """The Linux bridges."""
        return {path.parent.name for path in (self.root / "sys/class/net").glob("*/bridge")}

    def route_gateway(self, interface: Interface) -> Address | None:
        """The host's default gateway, when it lies in the network of `interface`.

        proc(5): `/proc/net/route` has little-endian hex words, `/proc/net/ipv6_route` plain ones.
        """
        gateways: list[Address] = []
        if interface.version == 4:
            for line in (self._read("proc/net/route") or "").splitlines()[1:]:
                words = line.split()
                if len(words) > 7 and words[1] == "00000000" and words[7] == "00000000":
                    gateways.append(ipaddress.IPv4Address(bytes.fromhex(words[2])[::-1]))
        else:
            for line in (self._read("proc/net/ipv6_route") or "").splitlines():
                words = line.split()
                if len(words) > 4 and words[0] == "0" * 32 and words[1] == "00":
                    gateways.append(ipaddress.IPv6Address(bytes.fromhex(words[4])))
        return next((each for each in gateways if each in interface.network and each != interface.ip), None)

    def _read(self, path: str) -> str | None:
        return self._read_at(self.root / path)

    @staticmethod
    def _read_at(path: Path) -> str | None:
        try:
            return path.read_text(errors="replace")
        except OSError:
            return None
