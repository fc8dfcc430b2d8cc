"""The two other forms of ibnetdiscover: `-p`, one line a port, and `-l`, one line a node without its cables."""

from __future__ import annotations

import re

from llmgw.fabric.rates import parse_rate
from llmgw.fabric.records import Kind, PortLine, Reading, Record, clean_name, parse_guid

# CA    15  1 0x0c42a10300000311 4x EDR - SW    16  3 0xb8cef60300a00041 ( 'node0003 HCA-2' - 'leaf-2' )
# SW  2052 37 0x506b4b03005c2740 4x ???                                    'ib-i4l1s01'
PORTS_LINE = re.compile(
    r"(CA|SW|RT)\s+(\d{1,5})\s+(\d{1,5})\s+(0x[0-9a-fA-F]{1,16})\s+(\d{1,2}x|\?\?)\s?([A-Z]{3}\d{0,2}|\?\?\?)"
    r"(?:\s+-\s+(CA|SW|RT)\s+(\d{1,5})\s+(\d{1,5})\s+(0x[0-9a-fA-F]{1,16})\s+\(\s*'(.*)' - '(.*)'\s*\)"
    r"|\s+('.*'|[^\s'-].*))\Z"
)
# Ca	 : 0x0c42a10300000310 ports 1 devid 0x101b vendid 0x2c9 "node0003 HCA-2"
LIST_LINE = re.compile(
    r"(Ca|Switch|Router)\s*:\s*(0x[0-9a-fA-F]{1,16}) ports (\d{1,5}) devid (0x[0-9a-fA-F]+) "
    r'vendid (0x[0-9a-fA-F]+) "(.*)"\Z'
)
_PORTS_KINDS: dict[str, tuple[Kind, str]] = {
    "CA": ("adapter", "H-"),
    "SW": ("switch", "S-"),
    "RT": ("router", "R-"),
}
_LIST_KINDS: dict[str, tuple[Kind, str]] = {
    "Ca": ("adapter", "H-"),
    "Switch": ("switch", "S-"),
    "Router": ("router", "R-"),
}


def read_ports_line(
    match: re.Match[str], records: dict[str, Record], reading: Reading, number: int, line: str
) -> None:
    """Take one line of `-p`. It tells port GUIDs: a switch's is its node's, an adapter has one a port."""
    own, lid, port, guid_text, width, speed, peer, peer_lid, peer_port, peer_guid, name, peer_name, alone = (
        match.groups()
    )
    guid = parse_guid(guid_text)
    if guid is None:
        reading.skip(number, line)
        return
    record = _record(records, own, guid, int(port), name if alone is None else alone.strip("'"), _lid(lid))
    if alone is not None:
        # An unconnected port still has a width and the speed it was built for, which say nothing.
        if int(port) in record.unconnected:
            reading.skip(number, line)
        record.unconnected.add(int(port))
        return
    other = parse_guid(peer_guid)
    rate = parse_rate(width + speed)
    if other is None:
        reading.skip(number, line)
        return
    found = PortLine(
        port=int(port),
        peer=_node_id(peer, other, int(peer_port)),
        peer_port=int(peer_port),
        peer_name=clean_name(peer_name),
        rate=rate,
        port_guid=guid,
        peer_port_guid=other,
        lid=_lid(lid),
        peer_lid=_lid(peer_lid),
    )
    if rate is None or any(found == known for known in record.lines if known.port == found.port):
        reading.skip(number, line)
    if found not in record.lines:
        record.lines.append(found)


def read_list_line(match: re.Match[str], reading: Reading, number: int, line: str) -> None:
    """Take one line of `-l`: a node, and nothing of its cables."""
    kind, prefix = _LIST_KINDS[match[1]]
    guid = parse_guid(match[2])
    if guid is None:
        reading.skip(number, line)
        return
    record = Record(
        id=f"{prefix}{guid:016x}",
        kind=kind,
        guid=guid,
        name=clean_name(match[6]),
        ports=int(match[3]),
        device_id=int(match[4], 16),
        vendor_id=int(match[5], 16),
        lines=[],
    )
    if reading.records and reading.records[-1] == record:
        reading.skip(number, line)
    else:
        reading.records.append(record)


def settle_ports(records: dict[str, Record], reading: Reading) -> None:
    """Hand over what the lines of `-p` made up."""
    for record in records.values():
        record.guid = int(record.id[2:], 16) or None
        reading.records.append(record)


def _record(
    records: dict[str, Record], kind: str, guid: int, port: int, name: str | None, lid: int | None
) -> Record:
    node = _node_id(kind, guid, port)
    record = records.get(node)
    if record is None:
        record = records[node] = Record(
            id=node,
            kind=_PORTS_KINDS[kind][0],
            guid=guid,
            name=clean_name(name) if name is not None else None,
            lid=lid if kind == "SW" else None,
            lines=[],
        )
    return record


def _node_id(kind: str, guid: int, port: int) -> str:
    """One id for all ports of a node. Port GUIDs of one adapter count up with its ports (1 is the lowest)."""
    if kind != "SW":
        guid = max(guid - (port - 1), 1)
    return f"{_PORTS_KINDS[kind][1]}{guid:016x}"


def _lid(text: str | None) -> int | None:
    lid = int(text) if text else 0
    return lid if 1 <= lid <= 0xBFFF else None
