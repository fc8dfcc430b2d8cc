"""What a backup says of itself: the first member of the file, and the names of the others."""

from __future__ import annotations

import time
from typing import Annotated, Final

import msgspec

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
DATABASE: Final = "llmgw.db"
REVOKED: Final = "revoked.pem"
AUTHORITY: Final = "authority.sealed"
MEMBERS: Final = (DATABASE, REVOKED, AUTHORITY)

MANIFEST_BYTES_MAX: Final = 64 * 1024
MADE_AT_S_MAX: Final = 253_402_300_799.0
"""The end of the year 9999: no calendar of ours goes further."""
SMALL_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of every member but the database: they are read into memory."""


class Member(msgspec.Struct, frozen=True):
    """One file of the backup."""

    bytes: int
    sha256: str
    """64 hexadecimal digits."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Of one backup. The checksums find damage; they prove nothing against somebody who can write the file."""

    format: int = FORMAT
    llmgw: str
    """The version that made it."""
    schema: str
    """The database's schema, as migrations number it."""
    catalog_revision: int | None
    """The revision that ruled; None: there was none yet."""
    made_at: Annotated[float, msgspec.Meta(ge=0, le=MADE_AT_S_MAX)]
    """Seconds since the epoch (UTC)."""
    files: dict[str, Member]


def stamp(seconds: float) -> str:
    """A moment as part of a name: `20260301T120000Z`."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))


def moment(seconds: float) -> str:
    """A moment for sentences: `2026-03-01 12:00:00 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
