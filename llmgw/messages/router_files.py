"""Where routers keep their files in the state folder: what both sides must know to find each other.

Each worker has a name, `router-0` and so on: its lock, held while the process lives, and its control socket are
called by it. The route table and the log are shared. Pure: names only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROUTER_TABLE = "routes.msgpack"
ROUTER_LOG = "router.log"

_NAME = re.compile(r"router(-[0-9]{1,4})?")


@dataclass(frozen=True)
class RouterFiles:
    """The files of one worker."""

    state: Path
    name: str

    @property
    def lock(self) -> Path:
        return self.state / f"{self.name}.lock"

    @property
    def socket(self) -> Path:
        return self.state / f"{self.name}.sock"

    @property
    def usage(self) -> Path:
        """What requests took, while no control process takes it."""
        return self.state / f"{self.name}.usage"

    @property
    def table(self) -> Path:
        """The same for all workers: each replaces it as a whole."""
        return self.state / ROUTER_TABLE

    @property
    def table_being_written(self) -> Path:
        """This worker's own, before it takes the place of `table`."""
        return self.state / f"routes-{self.name}.new"


def worker_name(number: int) -> str:
    """The name of a worker, from 0 on."""
    return f"router-{number}"


def is_worker_name(name: str) -> bool:
    """True for what `worker_name` makes, and for `router`, the only one there was before there were several."""
    return _NAME.fullmatch(name) is not None
