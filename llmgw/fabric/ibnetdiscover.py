"""Reads ibnetdiscover's text: the plain form here, `-p` and `-l` in port_list. Never raises, whatever the text.

The form is that of infiniband-diags, src/ibnetdiscover.c; what real files add to it is named where it is read.
"""

from __future__ import annotations

import re

from llmgw.fabric.port_list import LIST_LINE, PORTS_LINE, read_list_line, read_ports_line, settle_ports
from llmgw.fabric.rates import parse_rate
from llmgw.fabric.records import Kind, PortLine, Reading, Record, clean_name, parse_guid

LINE_CHARS_MAX = 4096

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_KINDS: dict[str, Kind] = {
    "Switch": "switch",
    "Ca": "adapter",
    "Hca": "adapter",
    "Rt": "router",
    "Router": "router",
}
_HEADER = re.compile(r'(Switch|Ca|Hca|Rt|Router)\s+(\d{1,5})\s+"([^"]+)"(.*)\Z')
_HEADER_COMMENT = re.compile(
    r'\s*#\s*"(.*)"(?:\s+(?:base|enhanced) port 0 lid\s+(-?\d*)\s*lmc \d+)?(?:\s*\([^()]*\))?\s*\Z'
)
_ATTRIBUTE = re.compile(r"(vendid|devid|sysimgguid|switchguid|caguid|hcaguid|rtguid|routerguid)=(.*)\Z")
# [1](guid) "S-…"[2](guid)  # lid 4 lmc 0 "name" lid 7 4xHDR s=4 w=2
# `[ext 3]` is the number printed on a chassis; ibdiagnet writes the port's number where the GUID belongs.
_ENDS = re.compile(
    r"\[(\d{1,5})\](?:\[ext \d+\])?(?:\(([^()]*)\))?\s+"
    r'"([^"]+)"\[(\d{1,5})\](?:\[ext \d+\])?(?:\(([^()]*)\))?\s*(?:#\s*(.*))?\Z'
)
_COMMENT = re.compile(
    r'(?:lid\s+(-?\d*)\s*lmc\s+\d*\s+)?"(.*)"(?:\s+lid\s+(-?\d*))?\s+(\d{1,2}x(?:[A-Z]{3}\d{0,2}|\?\?\?))'
    r"(?: s=\d+)?(?: w=\d+)?(?: v=\d+)?(?: e=\d+)?(?: fe=\d+)?(?: slot \d+)?(?: \(scp\))?\s*\Z"
)
_NAME = re.compile(r'(?:lid\s+-?\d*\s*lmc\s+\d*\s+)?"(.*)"')
# What -g writes between the records of a chassis.
_GROUPING = re.compile(r"(?:Chassis (?:\d+|Switches|CAs)\b|Non-Chassis Nodes\b|(?:Spine|Line|Other) Nodes\b)")
_COMPLAINT = re.compile(
    r"(?:\S*ib(?:warn|error|panic|debug)\b|src/\w+\.c|\S*mad_rpc|\S*ibnetdiscover: )|.*\b(?:Permission denied|"
    r"command not found|No such file or directory)"
)
_INITIATED = re.compile(r"# Initiated from node ([0-9a-fA-F]{1,16})\b")


def read_ibnetdiscover(text: str) -> Reading:
    """Everything that a saved run says. Line ends, a BOM, colours and a shell's prompt are no harm."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _Reader().read(text.removeprefix("\ufeff"))


class _Reader:
    """Goes through the lines once. The attributes before a header belong to the header that follows them."""

    def __init__(self) -> None:
        self.reading = Reading()
        self.attributes: dict[str, int | None] = {}
        self.record: Record | None = None
        self.ports: dict[int, PortLine] = {}
        self.in_ports: dict[str, Record] = {}

    def read(self, text: str) -> Reading:
        port_line, reading = self._port_line, self.reading
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.strip()
            if not line:
                continue
            if len(line) > LINE_CHARS_MAX:
                reading.skip(number, line)
            elif line[0] == "[" and self.record is not None:
                port_line(number, line)
            elif line[0] == "[":
                # Its header is missing: the attributes before it were that header's too.
                self.attributes = {}
                reading.skip(number, line)
            elif line[0] == "#":
                self._remark(line)
            else:
                self._other_line(number, line)
        settle_ports(self.in_ports, reading)
        if reading.form == "nothing" and reading.records:
            reading.form = "topology"
        return reading

    def _remark(self, line: str) -> None:
        match = _INITIATED.match(line)
        if match:
            self.reading.initiated_from = parse_guid(match[1])

    def _other_line(self, number: int, line: str) -> None:
        attribute = _ATTRIBUTE.match(line)
        if attribute:
            self._attribute(number, line, attribute[1], attribute[2])
        elif header := _HEADER.match(line):
            self._header(number, line, header)
        elif ports := PORTS_LINE.match(line):
            self._named_form("ports")
            read_ports_line(ports, self.in_ports, self.reading, number, line)
        elif listed := LIST_LINE.match(line):
            self._named_form("list")
            read_list_line(listed, self.reading, number, line)
        elif _COMPLAINT.match(line):
            self.reading.warn(line)
        elif not _GROUPING.match(line):
            self.reading.skip(number, line)

    def _named_form(self, form: str) -> None:
        if self.reading.form == "nothing":
            self.reading.form = "ports" if form == "ports" else "list"

    def _attribute(self, number: int, line: str, key: str, value: str) -> None:
        # A record may follow another without a blank line: its first attribute ends the one before.
        if self.record is not None:
            self.record = None
            self.attributes = {}
        first = re.match(r"(0x[0-9a-fA-F]{1,16})(?:\(([0-9a-fA-F]{1,16})\)(?:\s*#.*)?)?\Z", value)
        whole = first is not None and (first[2] is None or int(first[1], 16) == int(first[2], 16))
        if whole and key == "switchguid" and first is not None:
            whole = first[2] is not None
        key = "guid" if key.endswith("guid") and key != "sysimgguid" else key
        if key in self.attributes or not whole or first is None:
            self.reading.skip(number, line)
            self.attributes.setdefault(key, None)
        else:
            self.attributes[key] = int(first[1], 16)

    def _header(self, number: int, line: str, match: re.Match[str]) -> None:
        guid = parse_guid(match[3][2:])
        record = Record(
            id=f"{match[3][:2]}{guid:016x}" if guid is not None else clean_name(match[3]),
            kind=_KINDS[match[1]],
            guid=guid,
            ports=int(match[2]),
            vendor_id=self.attributes.get("vendid"),
            device_id=self.attributes.get("devid"),
            system_guid=self.attributes.get("sysimgguid"),
            lines=[],
        )
        comment = _HEADER_COMMENT.match(match[4])
        # Where the GUID is redacted, the name is all that tells a node from others: a header without is cut.
        whole = comment is not None or (guid is not None and not match[4].strip())
        if comment is not None:
            record.name = clean_name(comment[1])
            record.lid = _lid(comment[2])
        if guid is None and record.name is not None:
            # Redacted GUIDs are shared; with its name a node is told from others.
            record.id = f"{clean_name(match[3])} {record.name}"
        told = self.attributes.get("guid")
        if told is not None and guid is not None and told != guid and f"{guid:x}".startswith(f"{told:x}"):
            whole = False  # the line with the GUID was cut
        if self.record is not None and self.record.id == record.id:
            whole = False  # the same line again; what follows belongs to the first
            record = self.record
        else:
            self.reading.records.append(record)
            self.ports = {}
        if not whole:
            self.reading.skip(number, line)
        self.record = record
        self.attributes = {}

    def _port_line(self, number: int, line: str) -> None:
        ends = _ENDS.match(line)
        record = self.record
        if ends is None or record is None:
            self.reading.skip(number, line)
            return
        port, own_guid, peer, peer_port, peer_guid, remark = ends.groups()
        comment = _COMMENT.match(remark) if remark else None
        if comment is not None:
            own_lid, described, peer_lid, rate_text = comment.groups()
            rate = parse_rate(rate_text)
        else:
            name_only = _NAME.match(remark) if remark else None
            described = name_only[1] if name_only else None
            own_lid = peer_lid = rate = None
        name = clean_name(described) if described is not None else None
        node_guid = parse_guid(peer[2:])
        found = PortLine(
            port=int(port),
            peer=f"{peer[:2]}{node_guid:016x}" if node_guid is not None else f"{clean_name(peer)} {name}",
            peer_port=int(peer_port),
            peer_name=name,
            rate=rate,
            port_guid=_port_guid(own_guid),
            peer_port_guid=_port_guid(peer_guid),
            lid=_lid(own_lid),
            peer_lid=_lid(peer_lid),
        )
        before = self.ports.get(found.port)
        if rate is None or before is not None:
            self.reading.skip(number, line)
        if before is None or (before.peer, before.peer_port) != (found.peer, found.peer_port):
            # Two cables in one port is a contradiction, which the topology tells; both are kept for it.
            self.ports[found.port] = found
            record.lines.append(found)


def _lid(text: str | None) -> int | None:
    """A unicast LID (1 to 0xbfff, InfiniBand spec 1, 4.1.3); anything else was never assigned."""
    if not text:
        return None
    try:
        lid = int(text)
    except ValueError:
        return None
    return lid if 1 <= lid <= 0xBFFF else None


def _port_guid(text: str | None) -> int | None:
    # ibdiagnet writes a port's number here; no GUID is that small.
    guid = parse_guid(text) if text else None
    return guid if guid is not None and guid > 0xFFFF else None
