"""What the server asks two agents for a bandwidth test between them, and what they answer.

One agent runs perftest's `ib_write_bw` as its server, the other as its client. Each running program is an *end*,
with an id that the server gives it, and by which it is ended. Only for agents with the feature `fabric_test`.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

import msgspec

from llmgw.messages.fabric import AdapterName, PortNumber

FABRIC_TEST_FEATURE = "fabric_test"
BANDWIDTH_SECONDS_MAX = 60
BANDWIDTH_TEXT_CHARS_MAX = 65_536
BANDWIDTH_PORTS_MAX = 64

EndId = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
Seconds = Annotated[int, msgspec.Meta(ge=1, le=BANDWIDTH_SECONDS_MAX)]
_TcpPort = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class BandwidthPort(msgspec.Struct, frozen=True, kw_only=True):
    """One port of one adapter."""

    adapter: AdapterName
    port: PortNumber


class PrepareBandwidth(msgspec.Struct, frozen=True, kw_only=True, tag="prepare_bandwidth"):
    """Make sure that the program is there, and say how fast these adapters can be.

    `install`: where it is missing, and the agent is root, the distribution's package manager installs it.
    """

    seq: int
    request_id: str
    ports: Annotated[list[BandwidthPort], msgspec.Meta(max_length=BANDWIDTH_PORTS_MAX)]
    install: bool = True


class ServeBandwidth(msgspec.Struct, frozen=True, kw_only=True, tag="serve_bandwidth"):
    """Run the server end. It is answered when it listens, with the TCP port, or when it failed to."""

    seq: int
    request_id: str
    end: EndId
    adapter: AdapterName
    port: PortNumber
    seconds: Seconds


class MeasureBandwidth(msgspec.Struct, frozen=True, kw_only=True, tag="measure_bandwidth"):
    """Run the client end against a server end that listens. It is answered with the result."""

    seq: int
    request_id: str
    end: EndId
    adapter: AdapterName
    port: PortNumber
    seconds: Seconds
    host: Annotated[str, msgspec.Meta(min_length=2, max_length=64)]
    tcp_port: _TcpPort

    def __post_init__(self) -> None:
        # It stands in a command line; an address can be mistaken for nothing else there.
        ipaddress.ip_address(self.host)


class EndBandwidth(msgspec.Struct, frozen=True, kw_only=True, tag="end_bandwidth"):
    """End this end if it still runs. It is answered when nothing is left of it, with what it said."""

    seq: int
    request_id: str
    end: EndId


BandwidthQuestion = PrepareBandwidth | ServeBandwidth | MeasureBandwidth | EndBandwidth


class BandwidthAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to each of the four. `error` is a sentence when what was asked could not be done."""

    request_id: str
    tcp_port: _TcpPort | None = None
    """Of a server end that listens."""
    output: Annotated[str, msgspec.Meta(max_length=BANDWIDTH_TEXT_CHARS_MAX)] = ""
    """What the program said: standard output, then standard error."""
    exit_code: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None = None
    """Negative is a signal; None: it did not end by itself, or was never started."""
    installed: bool = False
    """The program was missing, and is there now."""
    pcie_gbps: Annotated[dict[str, float], msgspec.Meta(max_length=BANDWIDTH_PORTS_MAX)] = {}
    """Adapter → what its PCIe link carries; those of which it is not known are left out."""
    error: str | None = None
