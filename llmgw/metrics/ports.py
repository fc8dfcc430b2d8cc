"""Ports of InfiniBand and RoCE adapters: state, rate and counters. The same of a server and of an agent."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.messages.agent import Port
from llmgw.metrics.family import Family

_BOUND = "ports, at most 128 a node"
_LABELS = ("node", "adapter", "port")

ACTIVE = Family(
    "llmgw_ib_port_active",
    "gauge",
    "1 when the port of an InfiniBand or RoCE adapter carries traffic, else 0",
    (*_LABELS, "state", "phys_state"),
    _BOUND,
)
RATE = Family("llmgw_ib_port_rate_gbps", "gauge", "Rate of the port's link, in Gb/s", _LABELS, _BOUND)
COUNTERS = (
    "port_rcv_data",
    "port_xmit_data",
    "port_rcv_packets",
    "port_xmit_packets",
    "port_xmit_wait",
    "port_xmit_discards",
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
    "VL15_dropped",
    "out_of_sequence",
    "packet_seq_err",
    "out_of_buffer",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "rp_cnp_handled",
)
"""Of the port's folders `counters` and `hw_counters` in sysfs; others are not told."""
COUNTER = Family(
    "llmgw_ib_port_counter_total",
    "counter",
    "A counter of the port as sysfs has it, since the adapter was reset; port_rcv_data and port_xmit_data count "
    "words of 4 bytes",
    (*_LABELS, "counter"),
    f"{len(COUNTERS)} counters × ports, at most 128 a node",
)
FAMILIES = (ACTIVE, RATE, COUNTER)


def port_text(nodes: Iterable[tuple[str, list[Port]]]) -> str:
    """Every family, of nodes by their ids."""
    ports = [(node_id, port.adapter, str(port.port), port) for node_id, found in nodes for port in found]
    active = ACTIVE.text(
        ((*at, port.state or "unknown", port.phys_state or "unknown"), int(port.is_up)) for *at, port in ports
    )
    rate = RATE.text((at, port.rate_gbps) for *at, port in ports)
    counters = COUNTER.grouped(
        (at, [(name, port.counters.get(name)) for name in COUNTERS]) for *at, port in ports
    )
    return active + rate + counters
