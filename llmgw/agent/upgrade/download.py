"""A release's file from the server, in pieces over the agent's own connection; what is there is not fetched
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from llmgw.agent.conversation import Clock, Transport, TransportError
from llmgw.messages.agent import Refusal
from llmgw.messages.upgrade import PIECE_BYTES_MAX, ReadRelease, Upgrade
from llmgw.release.files import ReleaseError
from llmgw.release.signature import digest

PIECE_TIMEOUT_S = 60.0
STALL_LIMIT_S = 150.0
"""Without a byte for so long, the download is given up; what came of it stays for the next try."""
PAUSE_S = 1.0
RESERVE_BYTES = 64 * 1024 * 1024


async def download(
    upgrade: Upgrade,
    path: Path,
    *,
    transport: Transport,
    session: Callable[[], str | None],
    clock: Clock,
    tell: Callable[[int], None],
) -> None:
    """Fetch the file to `path` (0600), whose content then is what the upgrade says. `tell` hears how many
    bytes are there. Raises ReleaseError, a sentence.
    """
    try:
        had = await _fill(upgrade, path, transport=transport, session=session, clock=clock, tell=tell)
        whole = await _is_whole(upgrade, path)
        if had and not whole:
            # What an earlier try has left need not be what it received: the power may have been cut.
            path.unlink(missing_ok=True)
            await _fill(upgrade, path, transport=transport, session=session, clock=clock, tell=tell)
            whole = await _is_whole(upgrade, path)
        if not whole:
            path.unlink(missing_ok=True)
            raise ReleaseError(
                f"what the server sent as {upgrade.name} is not the file that was signed (another SHA-256): "
                "it was changed on the server's disk or on the way. Nothing of it was used."
            )
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # What runs here writes to that disk too.
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise ReleaseError(f"the disk that holds {path.parent} is full; make room there") from None
        raise ReleaseError(f"{error.filename or path} cannot be written: {error.strerror}") from None


async def _fill(
    upgrade: Upgrade,
    path: Path,
    *,
    transport: Transport,
    session: Callable[[], str | None],
    clock: Clock,
    tell: Callable[[int], None],
) -> int:
    """Fetch what is missing of the file; how many bytes of it were there already."""
    had = have = await asyncio.to_thread(_begin, path, upgrade.size_bytes)
    heard_at = clock.now()
    while have < upgrade.size_bytes:
        size = min(PIECE_BYTES_MAX, upgrade.size_bytes - have)
        piece = await _piece(upgrade, have, size, transport, session())
        if isinstance(piece, str):
            if clock.now() - heard_at > STALL_LIMIT_S:
                raise ReleaseError(
                    f"no byte of {upgrade.name} came for {STALL_LIMIT_S:.0f} s: {piece}; {have} of "
                    f"{upgrade.size_bytes} bytes are kept, and the next try goes on from there"
                )
            tell(have)
            await clock.sleep(PAUSE_S)
            continue
        await asyncio.to_thread(_append, path, have, piece)
        have += len(piece)
        heard_at = clock.now()
        tell(have)
    return had


async def _is_whole(upgrade: Upgrade, path: Path) -> bool:
    return await asyncio.to_thread(digest, path) == bytes.fromhex(upgrade.sha256)


async def _piece(
    upgrade: Upgrade, offset: int, size: int, transport: Transport, session: str | None
) -> bytes | str:
    """The bytes, or why there are none now. Raises ReleaseError when trying again is of no use."""
    if session is None:
        return "this node has no session with the server"
    wish = ReadRelease(session=session, sha256=upgrade.sha256, offset=offset, size_bytes=size)
    try:
        status, body = await transport.call("/agent/v1/release", msgspec.json.encode(wish), PIECE_TIMEOUT_S)
    except TransportError as error:
        return str(error)
    if status == 200:
        if not 0 < len(body) <= size:
            raise ReleaseError(
                f"the server sent {len(body)} bytes of {upgrade.name} where it was asked for {size}"
            )
        return body
    try:
        sentence = msgspec.json.decode(body, type=Refusal).message
    except msgspec.MsgspecError:
        sentence = f"the server answered {status}"
    if status in (404, 403):
        raise ReleaseError(f"the server does not give out {upgrade.name}: {sentence}")
    return sentence


def _begin(path: Path, size_bytes: int) -> int:
    """How many bytes of the file are there already. Raises OSError, ReleaseError when the disk is too small."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    have = path.stat().st_size
    if have > size_bytes:
        os.truncate(path, 0)
        have = 0
    # What others have left of their files: at most one upgrade is under way here.
    for other in path.parent.iterdir():
        if other != path:
            other.unlink()
    room = os.statvfs(path.parent)
    free = room.f_bavail * room.f_frsize
    if free < size_bytes - have + RESERVE_BYTES:
        raise ReleaseError(
            f"the disk that holds {path.parent} has {free} bytes left, and the file takes {size_bytes}; make room"
        )
    return have


def _append(path: Path, offset: int, piece: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(piece)
