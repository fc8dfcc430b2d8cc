"""The simulated adapters: the files of a tree shaped like /sys/class/infiniband, as text. No I/O.

Names, formats and the shape of the values follow real trees (mlx5 driver, Linux 5.15 and later).
"""

from __future__ import annotations

import hashlib
from typing import Literal

from llmgw.sim.hardware_files import Parameters

PortState = Literal["active", "init", "down", "slow", "unaddressed"]

# Gb/s → what the kernel calls it (width and speed), and the adapter that has such ports (type, device id,
# firmware, board).
RATES: dict[float, tuple[str, tuple[str, str, str, str]]] = {
    40: ("4X QDR", ("MT4099", "0x1003", "2.42.5000", "MT_1090120019")),
    56: ("4X FDR", ("MT4099", "0x1003", "2.42.5000", "MT_1090120019")),
    100: ("4X EDR", ("MT4119", "0x1017", "16.35.3006", "MT_0000000008")),
    200: ("4X HDR", ("MT4123", "0x101b", "20.41.1000", "MT_0000000223")),
    400: ("4X NDR", ("MT4129", "0x1021", "28.41.1000", "MT_0000000838")),
    800: ("4X XDR", ("MT4131", "0x1023", "40.44.1036", "MT_0000001222")),
}
LINK_DOWNED_MAX = 255
_GUID_PREFIX = "b83fd203"
_ERRORS = (
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_constraint_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_discards",
    "symbol_error",
)
_HW_ERRORS = (
    "duplicate_request",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rx_atomic_requests",
    "rx_dct_connect",
    "rx_icrc_encapsulated",
)


def adapter_name(index: int) -> str:
    """The kernel's name of the adapter."""
    return f"mlx5_{index}"


def pci_folder(index: int) -> str:
    """The adapter's PCI device below `sys/devices`: each beside the GPU of the same number."""
    domain, bus = index // 8, 0x18 + 0x10 * (index % 8)
    return f"{bridge_folder(index)}/{domain:04x}:{bus:02x}:00.0"


def socket_of(index: int) -> int:
    """The socket, and so the NUMA node, at which the adapter and the GPU of that number are."""
    return index % 8 // 4


def bridge_folder(index: int) -> str:
    """The bridge below which the adapter and the GPU of that number are, below `sys/devices`."""
    domain, bus = index // 8, 0x17 + 0x10 * (index % 8)
    return f"pci{domain:04x}:{bus:02x}/{domain:04x}:{bus:02x}:01.0"


def adapter_guid(node: str, index: int) -> str:
    """16 hexadecimal digits: the node GUID, and on these adapters the port GUID too."""
    return _GUID_PREFIX + hashlib.sha256(f"{node}/adapter/{index}".encode()).hexdigest()[:8]


def port_lid(node: str, index: int) -> int:
    """The LID that a subnet manager gives the adapter's port: 2 to 48,001, the same each time."""
    return 2 + _spread(node, index, "lid") % 48_000


def pci_files(parameters: Parameters, index: int) -> dict[str, str]:
    """Path below the PCI device → text."""
    device_id = RATES[parameters.rate_gbps][1][1]
    return {
        "vendor": "0x15b3\n",
        "device": device_id + "\n",
        "numa_node": f"{socket_of(index)}\n",
        "current_link_speed": "32.0 GT/s PCIe\n",
        "max_link_speed": "32.0 GT/s PCIe\n",
        "current_link_width": "16\n",
        "max_link_width": "16\n",
    }


def adapter_files(parameters: Parameters, index: int) -> dict[str, str]:
    """Path below the adapter → text: everything that does not change when the link does."""
    hca_type, _, firmware, board = RATES[parameters.rate_gbps][1]
    guid = _grouped(adapter_guid(parameters.node, index))
    ethernet = parameters.link_layer == "Ethernet"
    files = {
        "board_id": board,
        "fw_ver": firmware,
        "hca_type": hca_type,
        "hw_rev": "0",
        "node_desc": f"{parameters.node} {adapter_name(index)}",
        "node_guid": guid,
        "node_type": "1: CA",
        "sys_image_guid": guid,
        "ports/1/cap_mask": "0x04010000" if ethernet else "0xa751e848",
        "ports/1/has_smi": "0" if ethernet else "1",
        "ports/1/lid_mask_count": "0",
        "ports/1/link_layer": parameters.link_layer,
        "ports/1/pkeys/0": "0xffff",
        "ports/1/sm_sl": "0",
    }
    if not ethernet:
        files["ports/1/pkeys/1"] = "0x0000"
    for name, value in _counters(parameters.node, index).items():
        files[f"ports/1/counters/{name}"] = str(value)
    for name in _HW_ERRORS:
        files[f"ports/1/hw_counters/{name}"] = "0"
    files["ports/1/hw_counters/lifespan"] = "10"
    files["ports/1/hw_counters/rx_read_requests"] = str(_spread(parameters.node, index, "reads") % 10**7)
    files["ports/1/hw_counters/rx_write_requests"] = str(_spread(parameters.node, index, "writes") % 10**9)
    return {path: text + "\n" for path, text in files.items()}


def gid_files(parameters: Parameters, index: int, state: PortState) -> dict[str, str]:
    """Path below the adapter → text of the GID table: of two entries for a RoCE port without an address."""
    files: dict[str, str] = {}
    gids = _gids(parameters, index)
    for number, (gid, kind) in enumerate(gids[:2] if state == "unaddressed" else gids):
        files[f"ports/1/gids/{number}"] = gid + "\n"
        files[f"ports/1/gid_attrs/types/{number}"] = kind + "\n"
        if parameters.link_layer == "Ethernet":
            files[f"ports/1/gid_attrs/ndevs/{number}"] = f"ens{index}np0\n"
    return files


def port_files(parameters: Parameters, index: int, state: PortState) -> list[tuple[str, str]]:
    """(path below the adapter, text) of what changes with the link, in the order in which to write it.

    A reader in between never sees an ACTIVE port with the values of one that is down: `state` goes down
    first and comes up last.
    """
    ethernet = parameters.link_layer == "Ethernet"
    rate = f"{parameters.rate_gbps:g} Gb/sec ({RATES[parameters.rate_gbps][0]})"
    if state == "slow":  # one lane of four has come up
        rate = f"{parameters.rate_gbps / 4:g} Gb/sec ({RATES[parameters.rate_gbps][0].replace('4X', '1X')})"
    lid = port_lid(parameters.node, index)
    down = state == "down"
    works = not down and state != "init"
    if ethernet:
        values = {
            "phys_state": "3: Disabled" if down else "5: LinkUp",
            # What drivers print for an Ethernet port without a link.
            "rate": "40 Gb/sec (4X QDR)" if down else rate,
            "lid": "0x0",
            "sm_lid": "0x0",
        }
    else:
        values = {
            "phys_state": "2: Polling" if down else "5: LinkUp",
            "rate": "10 Gb/sec (4X SDR)" if down else rate,
            "lid": f"{lid:#x}" if works else "0xffff",
            "sm_lid": f"{parameters.sm_lid:#x}" if works else "0x0",
        }
    word = {"init": "2: INIT", "down": "1: DOWN"}.get(state, "4: ACTIVE")
    ordered = [*values.items(), ("state", word)] if works else [("state", word), *values.items()]
    return [(f"ports/1/{name}", text + "\n") for name, text in ordered]


def _gids(parameters: Parameters, index: int) -> list[tuple[str, str]]:
    guid = adapter_guid(parameters.node, index)
    zero = "0000:0000:0000:0000"
    if parameters.link_layer == "InfiniBand":
        return [(f"fe80:0000:0000:0000:{_grouped(guid)}", "IB/RoCE v1")]
    # fe80::, and the address of the interface as IPv4 (10.100+index.x.y), each for RoCE v1 and v2.
    local = f"fe80:0000:0000:0000:{_grouped(guid[:6] + 'fffe' + guid[10:])}"
    address = f"0a{100 + index:02x}{guid[-4:]}"
    mapped = f"{zero}:0000:ffff:{address[:4]}:{address[4:]}"
    return [
        (local, "IB/RoCE v1"),
        (local, "RoCE v2"),
        (mapped, "IB/RoCE v1"),
        (mapped, "RoCE v2"),
    ]


def _counters(node: str, index: int) -> dict[str, int]:
    """A port that has been at work for some days: data in 4-byte words, no errors, a few waits."""
    sent = 10**13 + _spread(node, index, "sent") % 10**14
    received = 10**13 + _spread(node, index, "received") % 10**14
    # Large messages: most packets carry 4096 bytes, 1024 words.
    counters = dict.fromkeys(_ERRORS, 0) | {
        "port_xmit_data": sent,
        "port_rcv_data": received,
        "port_xmit_packets": sent // 1011,
        "port_rcv_packets": received // 1013,
        "unicast_xmit_packets": sent // 1011 - 19,
        "unicast_rcv_packets": received // 1013 - 21,
        "multicast_xmit_packets": 19,
        "multicast_rcv_packets": 21,
        "port_xmit_wait": _spread(node, index, "wait") % 10**9,
    }
    return dict(sorted(counters.items()))


def _spread(node: str, index: int, what: str) -> int:
    """A large number that is the same each time for one node, adapter and purpose."""
    return int.from_bytes(hashlib.sha256(f"{node}/{index}/{what}".encode()).digest()[:8], "big")


def _grouped(guid: str) -> str:
    """`0123456789abcdef` → `0123:4567:89ab:cdef`."""
    return ":".join(guid[start : start + 4] for start in range(0, 16, 4))
