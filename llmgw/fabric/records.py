"""What one run of ibnetdiscover said, record by record, before anything is concluded from it."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["switch", "adapter", "router"]
Form = Literal["topology", "ports", "list", "nothing"]
"""Plain ibnetdiscover; `-p`, one line a port; `-l`, one line a node, without cables."""

UNREAD_SHOWN_MAX = 20
UNREAD_CHARS_MAX = 120
NAME_CHARS_MAX = 128
"""A NodeDescription has 64 bytes (InfiniBand spec 1, 14.2.5.2); a name from a node-name map may be longer."""


class PortLine(msgspec.Struct, gc=False):
    """One end of a cable as its own node's record tells it. `rate` None: it could not be read."""

    port: int
    peer: str
    """The other node's id in the text, `S-…`, `H-…` or `R-…`, GUID padded to 16 digits."""
    peer_port: int
    peer_name: str | None
    rate: tuple[int, str] | None
    port_guid: int | None = None
    peer_port_guid: int | None = None
    lid: int | None = None
    """Of this end, where the line tells it (adapters' lines do)."""
    peer_lid: int | None = None


class Record(msgspec.Struct):
    """One node with the ports that have a cable. What the text did not say is None."""

    id: str
    kind: Kind
    guid: int | None
    name: str | None = None
    ports: int | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    system_guid: int | None = None
    lid: int | None = None
    lines: list[PortLine] = []
    unconnected: set[int] = set()
    """Ports that are listed without a cable (`-p` only)."""


class Reading(msgspec.Struct):
    """A text read whole. `unread` counts lines that were not usable, in whole or in part, or repeated another."""

    form: Form = "nothing"
    records: list[Record] = []
    unread: int = 0
    unread_shown: list[str] = []
    """The first of them, each with its line's number, shortened."""
    warnings: list[str] = []
    """What the tool complained of in between (`ibwarn: …`): the map may be short of what it could not reach."""
    initiated_from: int | None = None
    """The GUID of the node that the text was made on."""

    def skip(self, number: int, line: str) -> None:
        """Count a line that could not be used."""
        self.unread += 1
        if len(self.unread_shown) < UNREAD_SHOWN_MAX:
            self.unread_shown.append(f"line {number}: {printable(line.strip(), UNREAD_CHARS_MAX)}")

    def warn(self, line: str) -> None:
        """Keep a complaint of the tool."""
        if len(self.warnings) < UNREAD_SHOWN_MAX:
            self.warnings.append(printable(line.strip(), UNREAD_CHARS_MAX))


def printable(text: str, chars_max: int) -> str:
    """A tool's words as they may be kept and shown: on one line, without control characters, bounded.

    Whoever has a port on a fabric chooses what its node is called. infiniband-diags itself blanks such characters
    (clean_nodedesc in cl_nodenamemap.c), but not those of a node-name map.
    """
    clean = text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
    return clean if len(clean) <= chars_max else clean[: chars_max - 1] + "…"


def clean_name(name: str) -> str:
    """What a node calls itself, as it is kept and shown."""
    return printable(name, NAME_CHARS_MAX)


def parse_guid(text: str) -> int | None:
    """A GUID with or without `0x`, padded or not; None when it is none (redacted, cut, zero)."""
    digits = text[2:] if text[:2] in ("0x", "0X") else text
    if not 0 < len(digits) <= 16:
        return None
    try:
        return int(digits, 16) or None
    except ValueError:
        return None


def guid_text(guid: int | None) -> str | None:
    """The one form in which GUIDs are shown: `0x` and 16 digits."""
    return None if guid is None else f"0x{guid:016x}"
