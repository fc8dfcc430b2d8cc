"""InfiniBand and RoCE ports from a tree like /sys/class/infiniband: what is there, in the kernel's own words.

Whether a port is good for anything is judged in `fabrics.py`; here nothing is judged.
"""

from __future__ import annotations

import re
from pathlib import Path

from llmgw.hardware.bonds import read_bond
from llmgw.hardware.gids import read_gids
from llmgw.hardware.pci import address_of_folder, read_numa_node
from llmgw.hardware.sysfs import list_names, read_text
from llmgw.messages.agent import Port

_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*Gb/sec", re.IGNORECASE)
_GUID = re.compile(r"[0-9a-fA-F]{16}")
# Unicast LIDs are 1 to 0xbfff (InfiniBand Architecture Specification 1, 4.1.3); 0xffff stands for "none".
_LID_MAX = 0xBFFF
_COUNTER_FOLDERS = ("counters", "counters_ext", "hw_counters")
# A setting of the driver (how long it caches the counters, in ms) that lies among the counters.
_NOT_COUNTERS = frozenset({"lifespan"})
_COUNTERS_MAX = 256
_PKEYS_MAX = 128
# Each entry is a question to the adapter's firmware, tables have 128, and managers fill them from the front.
_PKEYS_UNUSED_MAX = 16
_WORD_CHARS_MAX = 64


def read_ports(ib_root: Path) -> list[Port]:
    """Every port of every adapter below `ib_root`, in natural order (`mlx5_2` before `mlx5_10`).

    A root that does not exist has none. Files that are missing or hold `N/A (no PMA)` are None. Format:
    Documentation/ABI/stable/sysfs-class-infiniband of the Linux kernel.
    """
    return [
        _read_port(ib_root, adapter, number)
        for adapter in list_names(ib_root)
        for number in ports_of(ib_root, adapter)
    ]


def ports_of(ib_root: Path, adapter: str) -> list[int]:
    """The numbers of an adapter's ports; none when there is no such adapter."""
    return [
        int(number) for number in list_names(ib_root / adapter / "ports") if re.fullmatch(r"[0-9]{1,3}", number)
    ]


def read_link_layer(ib_root: Path, adapter: str, number: int) -> str | None:
    """`InfiniBand`, `Ethernet`, or what the kernel wrote."""
    return _word(read_text(ib_root / adapter / "ports" / str(number) / "link_layer"))


def _read_port(ib_root: Path, adapter: str, number: int) -> Port:
    folder = ib_root / adapter
    port = folder / "ports" / str(number)
    link_layer = read_link_layer(ib_root, adapter, number)
    state = parse_state(read_text(port / "state"))
    rate_text = _word(read_text(port / "rate"))
    gids = read_gids(port)
    return Port(
        adapter=adapter,
        port=number,
        link_layer=link_layer,
        state=state,
        phys_state=parse_state(read_text(port / "phys_state")),
        # A port that is down prints a rate left over or made up (40 QDR, 10 SDR): it has none.
        rate_gbps=parse_rate_gbps(rate_text) if state != "DOWN" else None,
        rate_text=rate_text,
        lid=parse_lid(read_text(port / "lid")),
        sm_lid=parse_lid(read_text(port / "sm_lid")),
        node_guid=parse_guid(read_text(folder / "node_guid")),
        # GID 0 of a RoCE port is made from a MAC address: only InfiniBand's ends in the port's GUID.
        port_guid=_port_guid(read_text(port / "gids" / "0")) if link_layer != "Ethernet" else None,
        pci_address=address_of_folder(folder / "device"),
        numa_node=read_numa_node(folder / "device"),
        virtual=(folder / "device" / "physfn").exists() if (folder / "device").exists() else None,
        bond=read_bond(ib_root, adapter, number, gids),
        pkeys=_read_pkeys(port / "pkeys"),
        gids=gids,
        counters=_read_counters(port),
    )


def _read_counters(port: Path) -> dict[str, int | None]:
    counters: dict[str, int | None] = {}
    for folder in _COUNTER_FOLDERS:
        for name in list_names(port / folder):
            if name in counters or name in _NOT_COUNTERS or len(counters) >= _COUNTERS_MAX:
                continue
            if re.fullmatch(r"[A-Za-z0-9_]{1,64}", name) and (port / folder / name).is_file():
                counters[name] = parse_counter(read_text(port / folder / name))
    return counters


def _read_pkeys(table: Path) -> list[int] | None:
    """The keys in use; None when there is no table."""
    names = [name for name in list_names(table) if name.isdecimal()]
    keys: list[int] = []
    unused = 0
    for name in names[:_PKEYS_MAX]:
        key = parse_pkey(read_text(table / name))
        if key is not None:
            keys.append(key)
        unused = 0 if key is not None else unused + 1
        if unused >= _PKEYS_UNUSED_MAX:
            break
    return keys if names else None


def parse_pkey(text: str | None) -> int | None:
    """`0xffff` → 65535. None for what is no key, and for 0 and 0x8000, which stand in unused entries."""
    if text is None or not re.fullmatch(r"0x[0-9a-fA-F]{1,4}", text):
        return None
    key = int(text, 16)
    # The upper bit is the membership; a key of zero is no partition (InfiniBand spec 1, 10.9.1).
    return key if key & 0x7FFF else None


def parse_state(text: str | None) -> str | None:
    """`4: ACTIVE` → `ACTIVE`, `5: LinkUp` → `LinkUp`; a text without a number stays as it is."""
    if text is None:
        return None
    number, colon, word = text.partition(":")
    return _word(word.strip() if colon and number.strip().isdigit() else text)


def parse_rate_gbps(text: str | None) -> float | None:
    """`400 Gb/sec (4X NDR)` → 400.0, whatever stands behind it; None when there is no such number."""
    match = _RATE.match(text) if text else None
    return float(match[1]) if match else None


def parse_lid(text: str | None) -> int | None:
    """`0x14e` → 334. 0 is kept (nobody has given one); 0xffff and everything else beyond unicast is None."""
    try:
        lid = int(text, 16) if text else -1
    except ValueError:
        return None
    return lid if 0 <= lid <= _LID_MAX else None


def parse_guid(text: str | None) -> str | None:
    """`0a7f:bc12:45ef:d23b` → `0x0a7fbc1245efd23b`; zero (a virtual function that was given none) is None."""
    digits = (text or "").removeprefix("0x").replace(":", "")
    if not _GUID.fullmatch(digits) or int(digits, 16) == 0:
        return None
    return "0x" + digits.lower()


def parse_counter(text: str | None) -> int | None:
    """A counter, or None for `N/A (no PMA)` and whatever else is no number of 64 bits."""
    if text is None or not re.fullmatch(r"[0-9]{1,20}", text):
        return None
    value = int(text)
    return value if value < 2**64 else None


def _port_guid(gid: str | None) -> str | None:
    groups = (gid or "").split(":")
    return parse_guid(":".join(groups[4:])) if len(groups) == 8 else None


def _word(text: str | None) -> str | None:
    return text[:_WORD_CHARS_MAX] if text else None
