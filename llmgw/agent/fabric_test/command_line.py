"""The command lines of `ib_write_bw`, and the facts of a port that they need. No shell ever sees them."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.config.errors import SentenceError
from llmgw.hardware.fabrics import why_port_unusable
from llmgw.hardware.gids import gid_indexes
from llmgw.messages.agent import Port

MESSAGE_BYTES = 8 * 1024 * 1024
"""The largest that perftest's own walk over all sizes (`-a`) reaches: with it, nothing but the links counts. That
walk itself cannot be given a duration."""


class BandwidthError(SentenceError):
    """An end cannot be run here; the sentence says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class EndSettings:
    """What the two ends must be told alike, and where they meet."""

    adapter: str
    port: int
    gid_index: int | None
    """Of a RoCE port; an InfiniBand port needs none."""
    tcp_port: int
    seconds: int
    host: str | None = None
    """The server end's address, for the client end; None for the server end."""
    ipv6: bool = False
    """The two meet over IPv6."""


def command_line(program: str, end: EndSettings) -> list[str]:
    """One end's command line, from the options of perftest's manual (man/perftest.1) that every version has.

    -F: no complaint about the CPU's frequency. --report_gbits: 10⁹ bits, which no version calls anything else.
    """
    words = [program, "-d", end.adapter, "-i", str(end.port), "-p", str(end.tcp_port)]
    words += ["-s", str(MESSAGE_BYTES), "-D", str(end.seconds), "-F", "--report_gbits"]
    if end.gid_index is not None:
        words += ["-x", str(end.gid_index)]
    if end.ipv6:
        words.append("--ipv6-addr")
    return words if end.host is None else [*words, end.host]


def find_port(ports: list[Port], adapter: str, number: int) -> Port:
    """The port, fit to be tested. Raises BandwidthError."""
    there = [port for port in ports if port.adapter == adapter]
    port = next((port for port in there if port.port == number), None)
    if port is None:
        names = ", ".join(dict.fromkeys(port.adapter for port in ports)) or "none"
        what = f"adapter {adapter} has no port {number}" if there else f"there is no adapter {adapter}"
        raise BandwidthError(f"{what} (the adapters are {names}); correct hcas in agent.yaml")
    problem = why_port_unusable(port)
    if problem is not None:
        raise BandwidthError(f"{problem.what}; {problem.remedy}")
    return port


def gid_index_of(port: Port) -> int | None:
    """The index of the GID that a RoCE port is tested with; None for InfiniBand. Raises BandwidthError."""
    if port.link_layer != "Ethernet":
        return None
    index = gid_indexes([port])[f"{port.adapter}:{port.port}"]
    if index is None:
        raise BandwidthError(
            f"{port.adapter} port {port.port} has no RoCE v2 GID with an address that others reach; give its "
            "interface an IPv4 address"
        )
    return index
