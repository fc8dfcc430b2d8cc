"""What a card or a switch can do: its speed by device id, by the product in its description, and split ports."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from llmgw.fabric.topology import Node

# Of Mellanox and those who sold its silicon under their own OUI (Voltaire, Topspin/Cisco, Sun, HP, Bull, NVIDIA).
_MELLANOX = frozenset({0x2C9, 0x8F1, 0x5AD, 0x3BA, 0x1708, 0x119F, 0x15B3, 0x10E0})

# https://pci-ids.ucw.cz/read/PC/15b3 and the tables of mstflint. A number sold at several speeds is not here:
# ConnectX-3 (0x1003, 0x1007) and SwitchX (0xc738) were QDR, FDR10 or FDR.
_SPEED_OF_DEVICE = {
    0x6340: "SDR",
    0x634A: "DDR",
    0x6732: "DDR",
    0x6354: "QDR",
    0x673C: "QDR",
    0x6746: "QDR",
    0x1011: "FDR",  # Connect-IB
    0x1013: "EDR",  # ConnectX-4
    0x1017: "EDR",  # ConnectX-5
    0x1019: "EDR",
    0xA2D2: "EDR",  # BlueField
    0x101B: "HDR",  # ConnectX-6
    0xA2D6: "HDR",  # BlueField-2
    0x1021: "NDR",  # ConnectX-7
    0xA2DC: "NDR",  # BlueField-3
    0x1023: "XDR",  # ConnectX-8
    0xBD34: "SDR",  # InfiniScale IV
    0xBD35: "DDR",
    0xBD36: "QDR",
    0xCB20: "EDR",  # Switch-IB
    0xCF08: "EDR",  # Switch-IB 2
    0xD2F0: "HDR",  # Quantum
    0xD2F2: "NDR",  # Quantum-2
    0xD2F4: "XDR",  # Quantum-3
}
_SEVERAL_SPEEDS = frozenset({0x1003, 0x1007, 0xC738})

# Products in descriptions, for text without device ids (`-p`).
_SPEED_OF_PRODUCT = (
    (re.compile(r"\bM?(?:SB7[78]|CS75)\d\d"), "EDR"),
    (re.compile(r"\bM?(?:QM87|CS85)\d\d"), "HDR"),
    (re.compile(r"\bM?QM97\d\d"), "NDR"),
    (re.compile(r"\bM?Q3[234]\d\d"), "XDR"),
)
# `MT4123 ConnectX6   Mellanox Technologies`: the device id, in decimal.
_CHIP = re.compile(r"\bMT(\d{4,5})\b")

# Ports of a switch in its two modes (the last is the aggregation node's): whole, and every port split in two.
_SPLIT_PORTS = {"HDR": 81, "NDR": 129, "XDR": 289}
# The cards that are also sold with half the lanes, at this very device id (HDR100, NDR200).
_HALF_WIDTH_SOLD = frozenset({0x101B, 0x1021, 0xA2D6, 0xA2DC})


class Ability(msgspec.Struct, frozen=True):
    """The best that one end can do. `width` 2 on a switch whose ports are split: 4 is possible, not expected."""

    speed: str
    width: int
    known_by: Literal["device id", "description"]


def ability_of(node: Node) -> Ability | None:
    """What this card or switch can do, or None where nothing tells."""
    device = node.device_id
    speed = None
    known_by: Literal["device id", "description"] = "device id"
    if device and node.vendor_id in _MELLANOX:
        if device in _SEVERAL_SPEEDS:
            return None
        speed = _SPEED_OF_DEVICE.get(device)
    if speed is None and node.name:
        known_by = "description"
        speed = _speed_of_name(node.name)
    if speed is None:
        return None
    return Ability(speed, 2 if is_split(node, speed) else 4, known_by)


def is_split(node: Node, speed: str) -> bool:
    """Whether a switch runs in the mode in which its ports are split in two."""
    return node.kind == "switch" and node.ports is not None and node.ports >= _SPLIT_PORTS.get(speed, 1 << 16)


def sold_at_half_width(node: Node) -> bool:
    """Whether cards of this kind exist that have two lanes only: then its likes tell which it is."""
    return node.device_id in _HALF_WIDTH_SOLD


def _speed_of_name(name: str) -> str | None:
    chip = _CHIP.search(name)
    if chip is not None and int(chip[1]) in _SPEED_OF_DEVICE:
        return _SPEED_OF_DEVICE[int(chip[1])]
    return next((speed for product, speed in _SPEED_OF_PRODUCT if product.search(name)), None)
