"""What perftest prints around and in its table, in the form of Debian 12's 4.5+0.17 (`ib_write_bw -V`: 6.06)."""

from __future__ import annotations

from llmgw.sim.fabric.perftest_options import Options

MIB_BITS = 8 * 1024 * 1024
_LINE = "-" * 87


def information(options: Options, device: str) -> str:
    """The block above the addresses."""
    lines = [
        _LINE,
        "                    RDMA_Write BW Test",
        f" Dual-port       : OFF\t\tDevice         : {device}",
        f" Number of qps   : {options.queue_pairs}\t\tTransport type : IB",
        " Connection type : RC\t\tUsing SRQ      : OFF",
        " PCIe relax order: ON",
        " ibv_wr* API     : ON",
        *([" TX depth        : 128"] if options.host is not None else []),
        " CQ Moderation   : 1",
        f" Mtu             : {options.mtu}[B]",
        " Link type       : IB",
        *([f" GID index       : {options.gid_index}"] if options.gid_index is not None else []),
        " Max inline data : 0[B]",
        f" rdma_cm QPs\t : {'ON' if options.rdma_cm else 'OFF'}",
        f" Data ex. method : {'rdma_cm' if options.rdma_cm else 'Ethernet'}",
        _LINE,
    ]
    return "\n".join(lines)


def heading(gbits: bool) -> str:
    """The table's heading: `[MB/sec]` means MiB/s."""
    unit = "Gb/sec" if gbits else "MB/sec"
    return f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]"


def row(options: Options, size: int, iterations: int, gbps: float) -> str:
    """One result. A peak that was not measured reads 0.00."""
    rate = gbps if options.gbits else gbps * 1e9 / MIB_BITS
    peak = rate if options.peak else 0.0
    messages = gbps * 1e9 / 8 / size / 1e6
    return f" {size:<7d}    {iterations:<10d}       {peak:<7.2f}            {rate:<7.2f}\t\t   {messages:<7.6f}"
