"""What the server asks a node to find out about its fabric, and what the fabric's own tools answered."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

FABRIC_TEXT_BYTES_MAX = 64 * 1024 * 1024
"""Of a tool's output, before it is compressed."""
FABRIC_ZLIB_BYTES_MAX = 10 * 1024 * 1024
"""Of what travels: below the bound of a report's body when written in base64."""
COMPLAINTS_CHARS_MAX = 16_384

AdapterName = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
PortNumber = Annotated[int, msgspec.Meta(ge=1, le=255)]


class AskFabric(msgspec.Struct, frozen=True, kw_only=True, tag="ask_fabric"):
    """Ask the fabric behind a port. Only for agents with the feature `fabric_tools`.

    `managers`: who manages it (`saquery SMIR`); `map`: how it is cabled (`ibnetdiscover`).
    """

    seq: int
    request_id: str
    what: Literal["managers", "map"]
    adapter: AdapterName
    port: PortNumber


class FabricText(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `AskFabric`: the tool's own words. `error` is a sentence when it could not be run at all.

    A tool that ran and failed has an exit code that is not 0 and its complaints: what that means is the reader's
    business.
    """

    request_id: str
    output: Annotated[bytes, msgspec.Meta(max_length=FABRIC_ZLIB_BYTES_MAX)] = b""
    """Standard output, compressed (zlib)."""
    complaints: Annotated[str, msgspec.Meta(max_length=COMPLAINTS_CHARS_MAX)] = ""
    """Standard error, its beginning."""
    exit_code: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None = None
    cut: bool = False
    """True: there was more output than may travel, and the rest is missing."""
    took_s: float = 0.0
    error: str | None = None
