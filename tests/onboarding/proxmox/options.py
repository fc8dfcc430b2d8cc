"""Proxmox's documented options of `qm`, as a table that refuses everything else.

Source: pve-docs, generated/qm.1-synopsis.adoc (https://git.proxmox.com/?p=pve-docs.git, as of Proxmox VE 9; it is
the synopsis of `man qm`). Each option's form is the one in there: the property strings with all their keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Check = Callable[[str], bool]


def boolean(value: str) -> bool:
    return value in ("0", "1")


def integer(least: int, most: int | None = None) -> Check:
    return lambda value: (
        value.isascii() and value.isdigit() and int(value) >= least and (most is None or int(value) <= most)
    )


def number(value: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", value) is not None


def string(value: str) -> bool:
    return bool(value)


def word(*words: str) -> Check:
    return lambda value: value in words


def pattern(text: str) -> Check:
    return lambda value: re.fullmatch(text, value) is not None


_HYPHENED = frozenset(
    {
        "aw_bits",
        "device_id",
        "enable_s3",
        "enable_s4",
        "freeze_fs",
        "host_tunnel",
        "import_from",
        "legacy_igd",
        "ms_cert",
        "phys_bits",
        "pre_enrolled_keys",
        "sub_device_id",
        "sub_vendor_id",
        "vendor_id",
        "x_vga",
    }
)


def properties(default: str | None = None, **keys: Check) -> Check:
    """`[default=]<value> [,key=<value>]`."""
    known = {key.replace("_", "-") if key in _HYPHENED else key: judge for key, judge in keys.items()}

    def check(text: str) -> bool:
        seen = set()
        for at, part in enumerate(text.split(",")):
            key, equals, value = part.partition("=")
            if not equals:
                if default is None or at:
                    return False
                key, value = default, part
            judge = known.get(key)
            if judge is None or key in seen or not judge(value):
                return False
            seen.add(key)
        return True

    return check


VMID = integer(100, 999999999)
STORAGE = pattern(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]")
VOLUME = pattern(r"none|cdrom|/[^,]+|[A-Za-z][A-Za-z0-9._-]*:[^,\s]+")
DISK_SIZE = pattern(r"\d+(\.\d+)?[KMGT]?")
PCI_ID = r"(?:[a-f0-9]{4,}:)?[a-f0-9]{2}:[a-f0-9]{2}(?:\.[a-f0-9])?"  # qemu-server, PCI.pm: $PCIRE
HEX_ID = pattern(r"0x[0-9a-fA-F]{4}")
MACHINE = properties(
    "type",
    type=pattern(r"pc|q35|pc-q35-\d+(\.\d+)+(\+pve\d+)?|pc-i440fx-\d+(\.\d+)+(\+pve\d+)?|virt"),
    aw_bits=number,
    enable_s3=boolean,
    enable_s4=boolean,
    viommu=word("intel", "virtio"),
)

_LIMITS: dict[str, Check] = {
    f"{kind}{suffix}": number
    for kind in ("bps", "iops", "mbps")
    for suffix in (
        "",
        "_max",
        "_rd",
        "_rd_max",
        "_wr",
        "_wr_max",
        "_max_length",
        "_rd_max_length",
        "_wr_max_length",
    )
}
_DRIVE: dict[str, Check] = {
    **_LIMITS,
    "file": VOLUME,
    "aio": word("native", "threads", "io_uring"),
    "backup": boolean,
    "cache": word("none", "writethrough", "writeback", "unsafe", "directsync"),
    "detect_zeroes": boolean,
    "discard": word("ignore", "on"),
    "format": word("raw", "qcow2", "vmdk"),
    "import_from": pattern(r"/[^,]+|[A-Za-z][A-Za-z0-9._-]*:[^,\s]+"),
    "media": word("cdrom", "disk"),
    "replicate": boolean,
    "rerror": word("ignore", "report", "stop"),
    "serial": string,
    "shared": boolean,
    "size": DISK_SIZE,
    "snapshot": boolean,
    "werror": word("enospc", "ignore", "report", "stop"),
}
_SSD: dict[str, Check] = {"ssd": boolean, "wwn": string}
_IDE = properties("file", **_DRIVE, **_SSD, model=string)
_SATA = properties("file", **_DRIVE, **_SSD)
_SCSI = properties(
    "file",
    **_DRIVE,
    **_SSD,
    iothread=boolean,
    product=string,
    queues=integer(2),
    ro=boolean,
    scsiblock=boolean,
    vendor=string,
)
_VIRTIO = properties("file", **_DRIVE, iothread=boolean, ro=boolean)
_HOSTPCI = properties(
    "host",
    host=pattern(rf"{PCI_ID}(;{PCI_ID})*"),
    device_id=HEX_ID,
    driver=word("vfio", "keep"),
    legacy_igd=boolean,
    mapping=string,
    mdev=string,
    pcie=boolean,
    rombar=boolean,
    romfile=string,
    sub_device_id=HEX_ID,
    sub_vendor_id=HEX_ID,
    vendor_id=HEX_ID,
    x_vga=boolean,
)
_IP4 = r"\d+\.\d+\.\d+\.\d+"
_IP6 = r"[0-9a-f:]*:[0-9a-f:]*"
_IPCONFIG = properties(
    ip=pattern(rf"dhcp|{_IP4}/\d+"),
    gw=pattern(_IP4),
    ip6=pattern(rf"dhcp|auto|{_IP6}/\d+"),
    gw6=pattern(_IP6),
)
_NET = properties(
    "model",
    model=word("e1000", "e1000e", "rtl8139", "virtio", "vmxnet3"),
    bridge=pattern(r"[^\s,]{1,15}"),
    firewall=boolean,
    host_tunnel=boolean,
    link_down=boolean,
    macaddr=pattern(r"(?i)([0-9a-f]{2}:){5}[0-9a-f]{2}"),
    mtu=integer(1, 65520),
    queues=integer(0, 64),
    rate=number,
    tag=integer(1, 4094),
    trunks=pattern(r"\d+(-\d+)?(;\d+(-\d+)?)*"),
)

_SETTINGS: dict[str, Check] = {
    "acpi": boolean,
    "affinity": string,
    "agent": properties(
        "enabled", enabled=boolean, freeze_fs=boolean, fstrim_cloned_disks=boolean, type=word("virtio", "isa")
    ),
    "allow-ksm": boolean,
    "arch": word("aarch64", "x86_64"),
    "args": string,
    "autostart": boolean,
    "balloon": integer(0),
    "bios": word("ovmf", "seabios"),
    "boot": properties("legacy", legacy=pattern("[acdn]{1,4}"), order=pattern(r"[a-z]+\d+(;[a-z]+\d+)*")),
    "cdrom": VOLUME,
    "cicustom": properties(meta=VOLUME, network=VOLUME, user=VOLUME, vendor=VOLUME),
    "citype": word("configdrive2", "nocloud", "opennebula"),
    "ciupgrade": boolean,
    "ciuser": string,
    "cores": integer(1),
    "cpu": properties("cputype", cputype=string, flags=string, hidden=boolean, phys_bits=string),
    "cpulimit": number,
    "cpuunits": integer(1, 262144),
    "description": string,
    "efidisk0": properties(
        "file",
        file=VOLUME,
        efitype=word("2m", "4m"),
        format=word("raw", "qcow2", "vmdk"),
        import_from=string,
        ms_cert=string,
        pre_enrolled_keys=boolean,
        size=DISK_SIZE,
    ),
    "freeze": boolean,
    "hookscript": string,
    "hostpci": _HOSTPCI,
    "hotplug": string,
    "hugepages": word("1024", "2", "any"),
    "ide": _IDE,
    "ipconfig": _IPCONFIG,
    "keephugepages": boolean,
    "kvm": boolean,
    "localtime": boolean,
    "lock": word("backup", "clone", "create", "migrate", "rollback", "snapshot", "suspended"),
    "machine": MACHINE,
    "memory": properties("current", current=integer(16)),
    "name": pattern(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*"),  # format dns-name
    "nameserver": string,
    "net": _NET,
    "numa": boolean,
    "onboot": boolean,
    "ostype": word("l24", "l26", "other", "solaris", "win10", "win11"),
    "protection": boolean,
    "reboot": boolean,
    "rng0": string,
    "sata": _SATA,
    "scsi": _SCSI,
    "scsihw": word("lsi", "lsi53c810", "megasas", "pvscsi", "virtio-scsi-pci", "virtio-scsi-single"),
    "searchdomain": string,
    "serial": pattern(r"/dev/[^,]+|socket"),
    "shares": integer(0, 50000),
    "sockets": integer(1),
    "sshkeys": pattern(r"/.+"),
    "startup": string,
    "tablet": boolean,
    "tags": pattern(r"[a-z0-9_][a-z0-9_.+-]*([;, ][a-z0-9_][a-z0-9_.+-]*)*"),
    "template": boolean,
    "vcpus": integer(1),
    "vga": string,
    "virtio": _VIRTIO,
    "vmgenid": string,
    "vmstatestorage": STORAGE,
}
NUMBERED = {  # `--name[n]`: n is 0 to …
    "hostpci": 15,
    "ide": 3,
    "ipconfig": 31,
    "net": 31,
    "sata": 5,
    "scsi": 30,
    "serial": 3,
    "virtio": 15,
}
COMMANDS: dict[str, tuple[int, dict[str, Check]]] = {
    "create": (
        1,
        {
            **_SETTINGS,
            "archive": string,
            "bwlimit": integer(0),
            "force": boolean,
            "ha-managed": boolean,
            "import-working-storage": STORAGE,
            "live-restore": boolean,
            "pool": string,
            "start": boolean,
            "storage": STORAGE,
            "unique": boolean,
        },
    ),
    "set": (
        1,
        {
            **_SETTINGS,
            "delete": string,
            "digest": string,
            "force": boolean,
            "revert": string,
            "skiplock": boolean,
        },
    ),
    "resize": (3, {"digest": string, "skiplock": boolean}),
    "start": (1, {"machine": MACHINE, "skiplock": boolean, "timeout": integer(0), "force-cpu": string}),
    "stop": (
        1,
        {"keepActive": boolean, "overrule-shutdown": boolean, "skiplock": boolean, "timeout": integer(0)},
    ),
    "destroy": (1, {"destroy-unreferenced-disks": boolean, "purge": boolean, "skiplock": boolean}),
    "config": (1, {"current": boolean, "snapshot": string}),
    "status": (1, {"verbose": boolean}),
}


class WrongUsage(Exception):
    """What `qm` answers with exit code 255 and its usage."""


def read(arguments: list[str]) -> tuple[str, list[str], dict[str, str]]:
    """`qm`'s arguments: (command, what comes before options, options). Raises WrongUsage."""
    if not arguments or arguments[0] not in COMMANDS:
        raise WrongUsage(f"ERROR: unknown command 'qm {' '.join(arguments[:1])}'")
    command = arguments[0]
    count, known = COMMANDS[command]
    plain, rest = arguments[1 : 1 + count], arguments[1 + count :]
    if len(plain) < count or not VMID(plain[0]):
        raise WrongUsage("400 not enough arguments")
    options: dict[str, str] = {}
    while rest:
        name, rest = rest[0].removeprefix("--"), rest[1:]
        base = name.rstrip("0123456789")
        numbered = base in NUMBERED and name != base and int(name[len(base) :]) <= NUMBERED[base]
        check = known.get(base) if numbered else (None if name in NUMBERED else known.get(name))
        if check is None or not rest:
            raise WrongUsage(f"Unknown option: {name}")
        value, rest = rest[0], rest[1:]
        if name in options or not check(value):
            raise WrongUsage(f"400 Parameter verification failed.\n{name}: invalid format - {value}")
        options[name] = value
    return command, plain, options
