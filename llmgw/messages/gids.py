"""One entry of a port's GID table, by which RoCE addresses its peers."""

from __future__ import annotations

from typing import Literal

import msgspec


class Gid(msgspec.Struct, frozen=True, kw_only=True):
    """One entry, as `/sys/class/infiniband/ADAPTER/ports/N/gids/I` and `gid_attrs/types/I` say it.

    `gid` is the text of 8 groups, `0000:0000:0000:0000:0000:ffff:0a60:531a` for an IPv4 address. `kind` is None
    where the kernel says neither.
    """

    index: int
    gid: str
    kind: Literal["v1", "v2"] | None = None
    """`IB/RoCE v1` or `RoCE v2`."""
