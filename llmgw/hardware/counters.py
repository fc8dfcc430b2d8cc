"""Where the counters of a port end: one that is full counts no further, and is "or more" wherever it is shown."""

from __future__ import annotations

from collections.abc import Mapping

# Bits of each, as PortCounters has them (InfiniBand spec 1, 16.1.3.5); sysfs shows what the adapter has, and the
# adapter adds no more to one that is full. Data and packets have 32 bits on adapters without extended counters.
_BITS = {
    **dict.fromkeys(["local_link_integrity_errors", "excessive_buffer_overrun_errors"], 4),
    **dict.fromkeys(["link_downed", "link_error_recovery"], 8),
    **dict.fromkeys(["port_rcv_constraint_errors", "port_xmit_constraint_errors"], 8),
    **dict.fromkeys(["symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors"], 16),
    **dict.fromkeys(["port_rcv_switch_relay_errors", "port_xmit_discards", "VL15_dropped"], 16),
    **dict.fromkeys(["port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets"], 32),
    "port_xmit_wait": 32,
}


def is_full(name: str, value: int | None) -> bool:
    """True when the counter stands at its end, so that there may have been more."""
    return value is not None and name in _BITS and value == 2 ** _BITS[name] - 1


def counter_text(name: str, value: int | None) -> str:
    """A counter as people read it: `7`, `255 or more`, `unknown`."""
    if value is None:
        return "unknown"
    return f"{value} or more" if is_full(name, value) else str(value)


def full_counters(counters: Mapping[str, int | None]) -> list[str]:
    """`link_downed 255 or more`, for each error counter of 8 or 16 bits that is full.

    Those of 4 bits stand at 15 on every port of healthy machines (seen on an H100 node), and tell nothing.
    """
    return [
        f"{name} {counter_text(name, value)}"
        for name, value in counters.items()
        if is_full(name, value) and _BITS[name] in (8, 16)
    ]
