"""What the operator asked for, judged by itself: no host is looked at here."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar, cast, get_args
from urllib.parse import urlsplit

from llmgw.messages.agent import NODE_ID_PATTERN
from llmgw.onboarding.provision.errors import refuse

DEFAULT_IMAGE: Final = "https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-generic-amd64.qcow2"
"""Not `genericcloud`: its kernel has no drivers for physical devices, and a node has passed-through ones."""

VMID_MIN: Final = 100  # qm(1): <integer> (100 - 999999999)
VMID_MAX: Final = 999_999_999
HOSTPCI_MAX: Final = 16  # qemu-server, PVE/QemuServer/PCI.pm: $MAX_HOSTPCI_DEVICES
MIB: Final = 2**20
GIB: Final = 2**30
MEMORY_BYTES_MIN: Final = GIB
SSH_KEYS_MAX: Final = 16

_T = TypeVar("_T")
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Pages = Literal["1024", "2", "any"]

# A gigabyte is 1024 MiB to Proxmox, whatever it is called.
_SIZE = re.compile(r"(\d{1,9})(?:\.(\d{1,3}))?\s?([MGT])(?:i?B)?", re.IGNORECASE | re.ASCII)
_FACTORS = {"M": MIB, "G": GIB, "T": 2**40}
# Storage ids: pve-storage's `pve-storage-id`. Names of interfaces: net/core/dev.c, dev_valid_name.
_STORAGE = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,98}[A-Za-z0-9]")
_BRIDGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")  # useradd(8)
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])(?:\.([0-7]))?", re.IGNORECASE)
_SERVER = re.compile(r"https://[A-Za-z0-9.:\[\]_-]{1,255}/?")
_DIGEST = {"sha256": re.compile(r"[0-9a-f]{64}"), "sha512": re.compile(r"[0-9a-f]{128}")}


@dataclass(frozen=True, slots=True)
class PciAddress:
    """`0000:41:00` with all functions of the device (function None), or one of them."""

    slot: str
    function: int | None

    def __str__(self) -> str:
        return self.slot if self.function is None else f"{self.slot}.{self.function}"


@dataclass(frozen=True, slots=True)
class Checksum:
    """A digest in hex, lower case."""

    kind: Literal["sha256", "sha512"]
    hex: str


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A VM as it is asked for. Each value is possible; whether the host has it, checks.py finds out.

    `storage` None: the host's own choice. `gateway` None: the host's own, if it is in the network of `ip`.
    """

    vmid: int
    name: str
    ip: Interface
    gateway: Address | Literal["none"] | None
    bridge: str
    storage: str | None
    cores: int
    sockets: int
    memory_bytes: int
    disk_bytes: int
    image: str
    checksum: Checksum | None
    ssh_user: str
    ssh_port: int
    ssh_keys: tuple[Path, ...]
    pci: tuple[PciAddress, ...]
    hugepages: Pages | None
    packages: bool
    server: str | None
    """What the node's agent will dial; only named in what to do next."""


def read_wanted(
    *,
    vmid: int,
    name: str,
    ip: str,
    gateway: str | None = None,
    bridge: str = "vmbr0",
    storage: str | None = None,
    cores: int = 4,
    sockets: int = 1,
    memory: str = "16G",
    disk: str = "64G",
    image: str = DEFAULT_IMAGE,
    image_sha256: str | None = None,
    image_sha512: str | None = None,
    ssh_user: str = "root",
    ssh_port: int = 22,
    ssh_keys: tuple[Path, ...] = (),
    pci: tuple[str, ...] = (),
    hugepages: str | None = None,
    packages: bool = True,
    server: str | None = None,
) -> Wanted:
    """The options of the command line. Raises ProvisionError with a sentence for each that is impossible."""
    wrong: list[str] = []
    told_digests = [
        (kind, text) for kind, text in (("sha256", image_sha256), ("sha512", image_sha512)) if text is not None
    ]
    interface = _read(wrong, _interface, ip)
    wanted = Wanted(
        vmid=_read(wrong, _count, "--vmid", vmid, VMID_MIN, VMID_MAX),
        name=_read(wrong, _name, name),
        ip=interface,
        gateway=_read(wrong, _gateway, gateway, interface) if interface is not None else None,
        bridge=_read(wrong, _matching, "--bridge", bridge, _BRIDGE, "the name of an interface such as vmbr0"),
        storage=None
        if storage is None
        else _read(wrong, _matching, "--storage", storage, _STORAGE, "the id of a storage such as local-lvm"),
        cores=_read(wrong, _count, "--cores", cores, 1, 1024),
        sockets=_read(wrong, _count, "--sockets", sockets, 1, 4),
        memory_bytes=_read(wrong, _size, "--memory", memory),
        disk_bytes=_read(wrong, _size, "--disk", disk),
        image=_read(wrong, _image, image),
        checksum=_read(wrong, _checksum, told_digests),
        ssh_user=_read(wrong, _matching, "--ssh-user", ssh_user, _USER, "the name of a user such as root"),
        ssh_port=_read(wrong, _count, "--ssh-port", ssh_port, 1, 65535),
        ssh_keys=_read(wrong, _few, "--ssh-key", ssh_keys, SSH_KEYS_MAX),
        pci=_read(wrong, _pci, pci),
        hugepages=_read(wrong, _hugepages, hugepages),
        packages=packages,
        server=None
        if server is None
        else _read(wrong, _matching, "--server", server, _SERVER, "a URL such as https://gateway.internal:8443"),
    )
    refuse(wrong)
    refuse(_together(wanted))
    return wanted


def _read(wrong: list[str], reader: Callable[..., _T], *args: object) -> _T:
    try:
        return reader(*args)
    except ValueError as error:
        wrong.append(str(error))
        return cast(_T, None)  # never used: `refuse` follows


def _count(option: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ValueError(f"{option} {value}: must be a whole number from {least} to {most}.")
    return value


def _matching(option: str, value: str, pattern: re.Pattern[str], what: str) -> str:
    if not pattern.fullmatch(value):
        raise ValueError(f"{option} {value[:80]!r} cannot be meant; give {what}.")
    return value


def _few(option: str, values: tuple[Path, ...], most: int) -> tuple[Path, ...]:
    if len(values) > most:
        raise ValueError(f"{option} is given {len(values)} times; at most {most} files of keys are read.")
    return values


def _name(name: str) -> str:
    """A node id that is a hostname and a name of Proxmox's too.

    Proxmox gives cloud-init the part before the first dot as hostname (PVE/QemuServer/Cloudinit.pm,
    get_hostname_fqdn), so with a dot the hostname would not be the node id.
    """
    if not re.fullmatch(NODE_ID_PATTERN, name):
        raise ValueError(
            f"--name {name[:80]!r} is no node id: 1 to 63 small letters, digits, dots and hyphens, the first and "
            "the last no dot or hyphen, such as node05."
        )
    if "." in name:
        raise ValueError(
            f"--name {name!r} has a dot: Proxmox would call the machine {name.partition('.')[0]!r}, and hostname "
            f"and node id must be the same; use {name.replace('.', '-')!r} or the part before the dot."
        )
    if name.isdigit():
        raise ValueError(f"--name {name!r} is only digits, which reads like a VMID; put a letter into it.")
    if name == "localhost":
        raise ValueError("--name 'localhost' is every machine's own name; use one such as node05.")
    return name


def _interface(text: str) -> Interface:
    if "/" not in text:
        raise ValueError(f"--ip {text[:80]!r} has no network; write the address with its prefix: 10.0.0.15/24.")
    try:
        interface = ipaddress.ip_interface(text)
    except ValueError:
        raise ValueError(
            f"--ip {text[:80]!r} is no address with its prefix; write for example 10.0.0.15/24 or fd00::15/64."
        ) from None
    address, network = interface.ip, interface.network
    if isinstance(address, ipaddress.IPv6Address) and (address.scope_id or address.ipv4_mapped):
        raise ValueError(f"--ip {text!r} means something on one machine only; give an address of the network.")
    if address.is_multicast or address.is_unspecified or address.is_link_local or address.is_reserved:
        raise ValueError(
            f"--ip {text!r} is no address that a machine can be reached at; give one of the network."
        )
    spare = network.prefixlen < network.max_prefixlen - 1
    if spare and (address == network.network_address or (address.version == 4 and address == network[-1])):
        kind = "the network itself" if address == network.network_address else "its broadcast address"
        raise ValueError(f"--ip {text!r} is {kind}; give the address of a machine in {network}.")
    return interface


def _gateway(text: str | None, interface: Interface) -> Address | Literal["none"] | None:
    if text is None:
        return None
    if text == "none":
        return "none"
    try:
        gateway = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"--gateway {text[:80]!r} is no address; write it without a prefix, or none.") from None
    if gateway.version != interface.version:
        raise ValueError(f"--gateway {text!r} is IPv{gateway.version} and --ip is IPv{interface.version}.")
    if gateway == interface.ip:
        raise ValueError(f"--gateway {text!r} is the machine's own address; give the router's.")
    network = interface.network
    spare = gateway.version == 4 and network.prefixlen < network.max_prefixlen - 1
    if spare and gateway in (network[0], network[-1]):
        raise ValueError(f"--gateway {text!r} is the address of the network {network} itself; give the router's.")
    beside = gateway.version == 6 and gateway.is_link_local
    if gateway not in interface.network and not beside:
        raise ValueError(f"--gateway {text!r} is not in the network {interface.network} of --ip.")
    return gateway


def _size(option: str, text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{option} {text[:80]!r} is no size; write for example 64G, 512M or 1.5T.")
    size = int(float(f"{found[1]}.{found[2] or 0}") * _FACTORS[found[3].upper()])
    if size % MIB:
        raise ValueError(f"{option} {text!r} is no whole number of MiB; write for example {size // MIB}M.")
    if size < MEMORY_BYTES_MIN:
        raise ValueError(f"{option} {text!r} is less than a node boots with; give at least 1G.")
    if size >= 2**50:
        raise ValueError(f"{option} {text!r} is more than any host has; write for example 64G.")
    return size


def _image(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not text or not text.isprintable() or len(text) > 2000:
        raise ValueError("--image must be the path of a file or an https:// address.")
    if not separator:
        return text
    if scheme.lower() not in ("https", "http"):
        raise ValueError(f"--image {text[:80]!r}: only https:// (and http:// with a checksum) can be fetched.")
    if "@" in rest.partition("/")[0]:
        raise ValueError("--image has a password in its address, which logs would show; give it without.")
    try:
        parts = urlsplit(text)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise ValueError(f"--image {text[:80]!r} is no address; write for example {DEFAULT_IMAGE}.")
    if not parts.path.rpartition("/")[2]:
        raise ValueError(f"--image {text[:80]!r} names a folder; give the address of the image in it.")
    return text


def _checksum(told: list[tuple[Literal["sha256", "sha512"], str]]) -> Checksum | None:
    if len(told) > 1:
        raise ValueError("--image-sha256 and --image-sha512 are two ways to say one thing; give one of them.")
    for kind, text in told:
        digest = text.strip().lower()
        if not _DIGEST[kind].fullmatch(digest):
            length = {"sha256": 64, "sha512": 128}[kind]
            raise ValueError(f"--image-{kind} must be {length} hex digits; this has {len(digest)} characters.")
        return Checksum(kind, digest)
    return None


def _pci(texts: tuple[str, ...]) -> tuple[PciAddress, ...]:
    found: list[PciAddress] = []
    for text in texts:
        read = _PCI.fullmatch(text)
        if read is None:
            raise ValueError(
                f"--pci {text[:80]!r} is no PCI address; write it as lspci does: 41:00.0, 0000:41:00.0, or 41:00 "
                "for all functions of the device."
            )
        slot = f"{(read[1] or '0000').lower()}:{read[2].lower()}:{read[3].lower()}"
        address = PciAddress(slot, None if read[4] is None else int(read[4]))
        for other in found:
            if other.slot == slot and (None in (other.function, address.function) or other == address):
                raise ValueError(f"--pci {text}: {slot} is named twice; once is enough.")
        found.append(address)
    if len(found) > HOSTPCI_MAX:
        raise ValueError(
            f"--pci is given {len(found)} times; Proxmox passes at most {HOSTPCI_MAX} devices to a VM."
        )
    return tuple(found)


def _hugepages(text: str | None) -> Pages | None:
    for known in get_args(Pages):
        if text == known:
            return cast(Pages, known)
    if text is None:
        return None
    raise ValueError(f"--hugepages {text[:80]!r}: must be 1024 or 2 (the MiB of a page) or any, as qm takes it.")


def _together(wanted: Wanted) -> list[str]:
    """What is wrong with options that are each right."""
    wrong = []
    if wanted.cores % wanted.sockets:
        wrong.append(f"--cores {wanted.cores} cannot be split over --sockets {wanted.sockets}.")
    page_mib = {None: 1, "2": 2, "1024": 1024, "any": 2}[wanted.hugepages] * wanted.sockets
    memory_mib = wanted.memory_bytes // MIB
    if memory_mib % page_mib:
        pages = f"hugepages of {wanted.hugepages} MiB on " if wanted.hugepages else ""
        wrong.append(
            f"--memory must be a multiple of {page_mib} MiB for {pages}{wanted.sockets} socket(s); "
            f"{memory_mib} MiB is none."
        )
    if wanted.image.lower().startswith("http://") and wanted.checksum is None:
        wrong.append("--image over plain http:// could be anybody's: use https://, or give --image-sha512 too.")
    return wrong
