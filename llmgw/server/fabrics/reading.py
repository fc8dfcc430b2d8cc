"""What a node's answer about its fabric says: its text, or a sentence about why there is none.

It decompresses and parses, which may take seconds: for a thread, not for the event loop.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmgw.fabric.changes import Cabling, cabling_of
from llmgw.fabric.managers import Managers, read_managers
from llmgw.fabric.records import printable
from llmgw.fabric.report import Analysis, analyse, report_fabric
from llmgw.messages.agent import Port
from llmgw.messages.fabric import FABRIC_TEXT_BYTES_MAX, FabricText

_FORBIDDEN = re.compile(r"permission denied|operation not permitted|can't open UMAD|umad_open", re.IGNORECASE)
_CHARS_SHOWN_MAX = 300
MANAGERS_BYTES_MAX = 1024 * 1024
"""A record of a manager takes 250."""


class UnreadableError(ValueError):
    """An answer that is none. The message is a sentence without the node's name."""


@dataclass(frozen=True, slots=True)
class MapReading:
    """A map that was read, and what of it is kept."""

    analysis: Analysis
    cabling: Cabling
    switches: frozenset[int]
    guids: frozenset[int]
    """All that are on it."""


def text_of(answer: FabricText, bytes_max: int = FABRIC_TEXT_BYTES_MAX) -> str:
    """The tool's output. Raises UnreadableError when it could not be run, or said more than is read."""
    if answer.error is not None:
        raise UnreadableError(printable(answer.error, _CHARS_SHOWN_MAX))
    unpacked = b""
    if answer.output:
        unpacking = zlib.decompressobj()
        try:
            unpacked = unpacking.decompress(answer.output, bytes_max + 1)
        except zlib.error as error:
            raise UnreadableError(f"its answer cannot be unpacked ({error}); update llmgw there") from None
        if not unpacking.eof and len(unpacked) <= bytes_max:
            raise UnreadableError("its answer was cut on its way; it is asked again")
    if answer.cut or len(unpacked) > bytes_max:
        raise UnreadableError(
            f"it printed more than {bytes_max // 1024**2} MiB, which is read of no fabric; run the tool there by "
            "hand and look at what it prints"
        )
    return unpacked.decode("utf-8-sig", "replace")


def managers_of(answer: FabricText) -> Managers:
    """What `saquery` said of the managers. Raises UnreadableError when it said nothing about them.

    That nothing answered is an answer (`unknown`); that the tool could not ask is none.
    """
    text = f"{text_of(answer, MANAGERS_BYTES_MAX)}\n{answer.complaints}"
    said = read_managers(text)
    if said.form == "nothing" or (said.answer == "unknown" and _is_the_tools_own(text)):
        raise UnreadableError(said.problems[0] if text.strip() else _nothing_printed("saquery SMIR", answer))
    return said


def map_of(
    answer: FabricText,
    managers: Iterable[int],
    inventories: Mapping[str, Iterable[Port]],
    orders: Mapping[str, Sequence[str]],
) -> MapReading:
    """The map that `ibnetdiscover` printed. Raises UnreadableError for what is none."""
    text = text_of(answer)
    # What it complained of says whether the map is whole.
    analysis = analyse(f"{text}\n{answer.complaints}", managers, inventories, orders)
    topology = analysis.topology
    if answer.exit_code:
        # Whatever ended it, it may not have been through.
        topology.warnings.append(f"it ended with {answer.exit_code}")
    if not topology.links:
        raise UnreadableError(_map_failure(answer, analysis, text))
    switches = frozenset(node.guid for node in topology.of_kind("switch") if node.guid is not None)
    guids = {
        guid
        for node in topology.nodes.values()
        for guid in (node.guid, *node.port_guids.values())
        if guid is not None
    }
    return MapReading(analysis, cabling_of(topology), switches, frozenset(guids))


def _is_the_tools_own(text: str) -> bool:
    """Whether the failure is of the tool (no permission, not there), and says nothing of the fabric."""
    return _FORBIDDEN.search(text) is not None or "did not run" in read_managers(text).problems[0]


def _map_failure(answer: FabricText, analysis: Analysis, text: str) -> str:
    complaint = next((line.strip() for line in answer.complaints.splitlines() if line.strip()), "")
    complaint = printable(complaint, _CHARS_SHOWN_MAX)
    if _FORBIDDEN.search(answer.complaints):
        return f"ibnetdiscover may not use /dev/infiniband/umad*: run the agent there as root ({complaint})"
    if not text.strip():
        return _nothing_printed("ibnetdiscover", answer, f": {complaint}" if complaint else "")
    return report_fabric(analysis).problems[0]


def _nothing_printed(tool: str, answer: FabricText, why: str = "") -> str:
    ended = f" and ended with {answer.exit_code}" if answer.exit_code else ""
    return f"{tool} printed nothing{ended}{why}; run it there by hand"
