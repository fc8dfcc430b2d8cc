"""Usage on disk while no control process takes it, so that a router which dies then loses no more than a second.

What is read back goes out under the numbers that it had: what the server has already is not counted again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

import msgspec

from llmgw.messages.routes import UsageBatch
from llmgw.router.usage_ledger import UsageLedger

log = logging.getLogger(__name__)

LOOK_S = 0.5
# A server that lives acknowledges within little more than a second.
UNTAKEN_S = 2.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[UsageBatch]).decode


class UsageFile:
    """One router's, 0600. Written anew while something waits for longer than it should, and then removed."""

    def __init__(self, path: Path, ledger: UsageLedger) -> None:
        self._path = path
        self._ledger = ledger
        self._there = False
        self._failed = False

    def load(self) -> None:
        """Have what an earlier life left sent first. A file that cannot be read is reported and left out."""
        try:
            self._ledger.inherit(_decode(self._path.read_bytes()))
            self._there = True
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            log.warning(
                "usage of an earlier router in %s cannot be read (%s) and is not counted", self._path, error
            )

    async def keep(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            batches = self._ledger.untaken(time.monotonic(), UNTAKEN_S)
            if batches or self._there:
                await asyncio.to_thread(self._write_or_remove, batches)

    def close(self) -> None:
        """The router ends: what nobody took is for the next one of its name."""
        self._write_or_remove(self._ledger.untaken(time.monotonic(), 0.0))

    def _write_or_remove(self, batches: list[UsageBatch]) -> None:
        try:
            if batches:
                self._write(_encode(batches))
                self._there = True
            elif self._there:
                self._path.unlink(missing_ok=True)
                self._there = False
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.error("usage that nobody takes cannot be kept in %s: %s", self._path, error.strerror)
            self._failed = True

    def _write(self, data: bytes) -> None:
        # Not synced: it is for a router that dies, not for a machine that does.
        temporary = self._path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(data)
        temporary.replace(self._path)
