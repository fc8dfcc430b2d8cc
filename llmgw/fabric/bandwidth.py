"""What a bandwidth test between two adapters should reach, and how good what it reached is. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmgw.fabric.perftest import read_bandwidth
from llmgw.messages.agent import Port
from llmgw.messages.fabric_test_views import Grade

GOOD_SHARE = 0.90
DEGRADED_SHARE = 0.70
# Of InfiniBand links up to QDR a fifth is coding (8b/10b); the rate that people quote is with it.
_CODED_SHARE = 0.8
_CODED_SPEEDS = re.compile(r"\b(SDR|DDR|QDR)\b")


@dataclass(frozen=True, kw_only=True)
class RailEnd:
    """One end of a measurement: a port, and what its adapter's PCIe link carries (None: not known)."""

    node: str
    port: Port
    pcie_gbps: float | None = None

    @property
    def name(self) -> str:
        """As NCCL names it: `mlx5_0:1`."""
        return f"{self.port.adapter}:{self.port.port}"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One measurement, judged. `lost`: it was not made for want of a node, which says nothing of the fabric."""

    gbps: float | None
    limit_gbps: float | None
    limited_by: str
    grade: Grade
    words: str
    lost: bool = False


def expected(sender: RailEnd, receiver: RailEnd) -> tuple[float | None, str]:
    """(Gb/s, what limits it): the slowest of both links and both PCIe slots; (None, "") when nothing is known."""
    limits: list[tuple[float, str]] = []
    for end in (sender, receiver):
        link = _link_gbps(end.port)
        if link is not None:
            limits.append((link, "the link"))
    limits += [
        (end.pcie_gbps, f"the PCIe slot of {end.port.adapter} in {end.node}")
        for end in (sender, receiver)
        if end.pcie_gbps is not None
    ]
    return min(limits, key=lambda limit: limit[0], default=(None, ""))


def grade(gbps: float, limit_gbps: float) -> Grade:
    """good from 90 % of the limit on, degraded from 70 %, bad below."""
    share = gbps / limit_gbps
    return "good" if share >= GOOD_SHARE else "degraded" if share >= DEGRADED_SHARE else "bad"


def judge(
    sender: RailEnd,
    receiver: RailEnd,
    *,
    output: str,
    exit_code: int | None,
    error: str | None,
    receiver_words: str = "",
) -> Measured:
    """A measurement by what the client's end (the sender) printed.

    `error` is why it did not come to its own end; `receiver_words` what went wrong at the server's end, of which
    nothing else is read.
    """
    limit, limited_by = expected(sender, receiver)
    read = read_bandwidth(output)
    # A program that crashed after its table (signal) has measured nothing that one should rely on.
    failed = error is not None or exit_code is None or exit_code < 0
    if read.gbps is not None and not failed and limit is not None:
        words = "" if exit_code == 0 else f"ib_write_bw exited with {exit_code} after its result"
        return Measured(
            gbps=read.gbps,
            limit_gbps=limit,
            limited_by=limited_by,
            grade=grade(read.gbps, limit),
            words=words,
        )
    own = read.error if read.gbps is None and output.strip() else None
    if error is None and exit_code is not None and exit_code < 0:
        error = f"ib_write_bw was ended by signal {-exit_code}"
    if error is None and own is None and read.gbps is None:
        error = f"ib_write_bw exited with {exit_code} and printed nothing"
    if error is None and own is None:
        error = f"it reached {read.gbps:g} Gb/s, and neither the links' rates nor the PCIe slots' are known"
    parts = [f"{sender.node}: {text}" for text in (own, error) if text]
    if receiver_words:
        parts.append(f"{receiver.node}: {receiver_words}")
    return Measured(
        gbps=None, limit_gbps=limit, limited_by=limited_by, grade="error", words="; ".join(dict.fromkeys(parts))
    )


def _link_gbps(port: Port) -> float | None:
    if port.rate_gbps is None:
        return None
    coded = port.link_layer == "InfiniBand" and _CODED_SPEEDS.search(port.rate_text or "")
    return port.rate_gbps * _CODED_SHARE if coded else port.rate_gbps
