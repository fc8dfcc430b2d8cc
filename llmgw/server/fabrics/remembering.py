"""What is known of fabrics, to and from the store."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import structlog

from llmgw.fabric.changes import Cabling
from llmgw.fabric.managers import Managers
from llmgw.fabric.records import guid_text, parse_guid
from llmgw.server.fabrics.book import FabricBook
from llmgw.server.fabrics.comparing import compare_map
from llmgw.server.fabrics.known import KnownFabric
from llmgw.server.store.fabric_records import PhysicalFabricRecord
from llmgw.server.store.fabrics import FabricStore

log = structlog.get_logger("fabrics")

Shape = TypeVar("Shape")


def restore(book: FabricBook, store: FabricStore) -> None:
    """Take what earlier servers knew."""
    for record in store.known():
        book.restore(_known(record), _guids(record.managers), _guids(record.switches))


def remember(book: FabricBook, store: FabricStore) -> None:
    """Keep identities and what managers last said; what has not changed is not written."""
    for fabric_id in book.forgotten:
        store.forget(fabric_id)
    book.forgotten.clear()
    for fabric in book.known.values():
        identity = book.identity(fabric.id)
        store.put(
            fabric.id,
            names=list(fabric.names),
            managers=_texts(identity.managers),
            switches=_texts(identity.switches),
            said=None if fabric.managers is None else msgspec.json.encode(fabric.managers).decode(),
            said_at=fabric.managers_at,
            master_changed_at=fabric.master_changed_at,
        )


def cabling_text(cabling: Cabling) -> str:
    """A cabling as it is kept."""
    return msgspec.json.encode(cabling).decode()


def _known(record: PhysicalFabricRecord) -> KnownFabric:
    cabling = _read(record.cabling, Cabling, record.id)
    accepted = _read(record.accepted, Cabling, record.id)
    # Until it is mapped again what was other than accepted is so still.
    differences = compare_map(cabling, None, accepted).differences if cabling is not None else ()
    return KnownFabric(
        id=record.id,
        names=tuple(record.names),
        managers=_read(record.said, Managers, record.id),
        managers_at=record.said_at,
        master_changed_at=record.master_changed_at,
        cabling=cabling,
        accepted=accepted,
        accepted_at=record.accepted_at,
        accepted_by=record.accepted_by,
        differences=differences,
    )


def _read(text: str | None, shape: type[Shape], fabric_id: str) -> Shape | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=shape)
    except msgspec.MsgspecError as error:
        # Another version's shape: the fabric itself is known all the same, and this is told anew.
        log.warning("a part of what is kept of a fabric cannot be read", fabric=fabric_id, reason=str(error))
        return None


def _texts(guids: frozenset[int]) -> list[str]:
    return [guid_text(guid) or "" for guid in sorted(guids)]


def _guids(texts: list[str]) -> list[int]:
    return [guid for text in texts if (guid := parse_guid(text)) is not None]
