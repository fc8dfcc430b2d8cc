"""The command line of perftest's `ib_write_bw`, as far as a simulated one follows it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

DEFAULT_PORT = 18515
DEFAULT_SIZE = 65_536
DEFAULT_ITERATIONS = 5_000
ITERATIONS_MIN = 5
LARGEST_SIZE = 2**23
PEAK_ITERATIONS_MAX = 20_000

_WITHOUT_EFFECT = (
    "-F --CPU-freq",
    "-N --noPeak",
    "-z --com_rdma_cm",
    "--perform_warm_up",
    "--ipv6",
    "--disable_pcie_relaxed",
    "--use_hugepages",
)
_WITHOUT_EFFECT_WITH_A_VALUE = (
    "-t --tx-depth",
    "-Q --cq-mod",
    "-S --sl",
    "-T --tos",
    "-c --connection",
    "-f --margin",
    "-u --qp-timeout",
    "-l --post_list",
    "-I --inline_size",
    "-L --hop_limit",
    "--tclass",
    "--pkey_index",
    "--force-link",
)


class BadOptionsError(Exception):
    """perftest's own complaint about its command line."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user wrote. `host` None: this is the server. `duration_s` 0: `iterations` end the run."""

    host: str | None
    device: str | None
    ib_port: int
    port: int
    sizes: list[int]
    iterations: int
    duration_s: int
    queue_pairs: int
    gid_index: int | None
    mtu: int
    gbits: bool
    rdma_cm: bool
    source: str | None
    version: bool

    def agreed(self) -> dict[str, object]:
        """What both ends must have been told alike, as JSON gives it back."""
        return {
            "sizes": self.sizes,
            "duration_s": self.duration_s,
            "iterations": self.iterations,
            "queue_pairs": self.queue_pairs,
            "rdma_cm": self.rdma_cm,
        }

    @property
    def peak(self) -> bool:
        """Whether perftest measures a peak: not by time, nor over many messages."""
        return not self.duration_s and self.iterations <= PEAK_ITERATIONS_MAX


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadOptionsError(
            f"{self.prog}: {message}\n Invalid Command or flag.\n Please check command line and run again."
        )


def read_options(arguments: Sequence[str]) -> Options:
    """Raises BadOptionsError, as for what a simulated fabric cannot do (both directions at once)."""
    parser = _Parser(prog="ib_write_bw", add_help=False, allow_abbrev=False)
    parser.add_argument("-d", "--ib-dev")
    parser.add_argument("-i", "--ib-port", type=int, default=1)
    parser.add_argument("-p", "--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("-s", "--size", type=int, default=DEFAULT_SIZE)
    parser.add_argument("-a", "--all", action="store_true")
    parser.add_argument("-n", "--iters", type=int, default=DEFAULT_ITERATIONS)
    parser.add_argument("-D", "--duration", type=int, default=0)
    parser.add_argument("-q", "--qp", type=int, default=1)
    parser.add_argument("-x", "--gid-index", type=int)
    parser.add_argument("-m", "--mtu", type=int, default=4096)
    parser.add_argument("-R", "--rdma_cm", action="store_true")
    parser.add_argument("-V", "--version", action="store_true")
    parser.add_argument("--report_gbits", action="store_true")
    parser.add_argument("--source_ip", "--bind_source_ip", dest="source")
    for names in _WITHOUT_EFFECT:
        parser.add_argument(*names.split(), action="store_true")
    for names in _WITHOUT_EFFECT_WITH_A_VALUE:
        parser.add_argument(*names.split())
    parser.add_argument("host", nargs="?")
    said = parser.parse_args(list(arguments))
    if said.iters < ITERATIONS_MIN and not said.duration:
        raise BadOptionsError(f"{parser.prog}: the number of exchanges is at least {ITERATIONS_MIN}")
    if not 1 <= said.port <= 65535 or said.size < 1 or said.duration < 0:
        parser.error("a number is out of range")
    sizes = [2**power for power in range(1, LARGEST_SIZE.bit_length())] if said.all else [said.size]
    return Options(
        host=said.host, device=said.ib_dev, ib_port=said.ib_port, port=said.port, sizes=sizes,
        iterations=said.iters, duration_s=said.duration, queue_pairs=said.qp, gid_index=said.gid_index,
        mtu=said.mtu, gbits=said.report_gbits, rdma_cm=said.rdma_cm, source=said.source, version=said.version,
    )  # fmt: skip
