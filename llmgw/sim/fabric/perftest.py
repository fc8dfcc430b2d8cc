"""A simulated node's `ib_write_bw`: two of them meet over TCP and print what perftest 4.5 (6.06) would.

The rate is that of the slowest cable between the two adapters at each moment, and what is "sent" is counted by
their ports. As in the original, output to a pipe is written when the program ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw.sim.fabric.live import Live, Port, look, own_adapters, read_port
from llmgw.sim.fabric.perftest_options import BadOptionsError, Options, read_options
from llmgw.sim.fabric.perftest_table import heading, information, row
from llmgw.sim.fabric.plan import Device
from llmgw.sim.hardware_files import HardwareError
from llmgw.sim.hardware_traffic import carry

TICK_S = 0.1
RETRIES_S = 0.5
"""How long an adapter sends again before it gives up on a peer that does not answer."""
EFFICIENCY = 0.95
FULL_SPEED_BYTES = 16_384
"""Smaller messages do not fill a link."""
LINE_BYTES_MAX = 16_384
_VERSION = "6.06"
_NO_PEER = (
    "ethernet_read_keys: Couldn't read remote address\n Unable to read to socket/rdma_cm\n"
    "Failed to exchange data between server and clients"
)
_GAVE_UP = (
    " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0\n"
    " Failed to complete run_iter_bw function successfully"
)


class _FailedError(Exception):
    """The program ends with these words on standard error."""


@dataclass(frozen=True)
class _Own:
    """This end's adapter, and where its fabric is described."""

    fabric: Path
    hardware: Path
    device: Device
    port: Port

    def address(self, qpn: int) -> str:
        return (
            f"LID {self.port.lid:#04x} QPN {qpn:#06x} PSN {int(self.device.guid[-6:], 16):#x} "
            f"RKey {qpn * 257:#08x} VAddr 0x007f{self.device.guid[-8:]}00"
        )


def main(arguments: list[str]) -> int:
    """`HARDWARE FABRIC ADDRESS` and then what the user wrote. Returns the exit code."""
    hardware, fabric, address = Path(arguments[0]), Path(arguments[1]), arguments[2]
    # An end that is interrupted says nothing, as a program without handlers does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        options = read_options(arguments[3:])
        if options.version:
            print(f"Version: {_VERSION}")
            return 0
        own = _open_adapter(fabric, hardware, options)
        if options.host is None:
            _serve(own, options, options.source or address)
        else:
            _drive(own, options, options.host)
    except (BadOptionsError, _FailedError, HardwareError) as error:
        sys.stdout.flush()
        print(error, file=sys.stderr)
        return 1
    return 0


def _open_adapter(fabric: Path, hardware: Path, options: Options) -> _Own:
    if not (hardware / "dev" / "infiniband").exists():
        raise _FailedError(
            " Did not detect devices \n If device exists, check if driver is up\n"
            " Unable to find the Infiniband/RoCE device"
        )
    own = own_adapters(look(fabric), hardware)
    name = options.device or min(own, default="")
    if name not in own:
        raise _FailedError(f"IB device {name} not found\n Unable to find the Infiniband/RoCE device")
    device, port = own[name]
    if port is None or not port.active or options.ib_port != 1:
        state = "Init" if port is not None and port.linked else "Down"
        raise _FailedError(
            f" Port number {options.ib_port} state is {state}\n Couldn't set the link layer\n"
            " Couldn't get context for the device"
        )
    return _Own(fabric, hardware, device, port)


def _serve(own: _Own, options: Options, address: str) -> None:
    print("\n************************************\n* Waiting for client to connect... *")
    print("************************************")
    try:
        listener = socket.create_server(
            (address, options.port), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=1
        )
    except OSError:
        raise _FailedError(
            f"Couldn't listen to port {options.port}\nUnable to open file descriptor for socket connection\n"
            " Unable to init the socket connection"
        ) from None
    with listener:
        connection, _ = listener.accept()
    with connection:
        _meet(own, options, connection)
        sizes, received = options.sizes, 0
        for size in sizes:
            told = _receive_report(own, connection, received)
            received = told["bytes"]
            print(row(options, size, told["iterations"], told["gbps"]))
        print("-" * 87)


def _drive(own: _Own, options: Options, host: str) -> None:
    try:
        connection = socket.create_connection((host, options.port), timeout=10)
    except OSError:
        raise _FailedError(
            f"Couldn't connect to {host}:{options.port}\nUnable to open file descriptor for socket connection\n"
            " Unable to init the socket connection"
        ) from None
    with connection:
        peer = _meet(own, options, connection)
        sent = 0
        for size in options.sizes:
            iterations, gbps, moved = _write(own, options, connection, size, peer, sent)
            sent += moved
            _say(connection, {"bytes": sent, "iterations": iterations, "gbps": gbps, "done": True})
            print(row(options, size, iterations, gbps))
        print("-" * 87)


def _meet(own: _Own, options: Options, connection: socket.socket) -> str:
    """Tell each other what each was asked to do, and print it; the other's GUID. Raises _FailedError."""
    qpn = 0x40 + os.getpid() % 0x8000
    connection.settimeout(10)
    mine = {**options.agreed(), "guid": own.device.guid, "address": own.address(qpn)}
    _say(connection, mine)
    theirs = _hear(connection)
    differing = [key for key in options.agreed() if theirs.get(key) != mine[key]]
    if differing:
        raise _FailedError(_NO_PEER)
    print(information(options, own.device.hca or ""))
    print(f" local address: {own.address(qpn)}")
    print(f" remote address: {theirs['address']}")
    print("-" * 87)
    print(heading(options.gbits))
    return str(theirs["guid"])


def _write(
    own: _Own, options: Options, connection: socket.socket, size: int, peer: str, sent_before: int
) -> tuple[int, float, int]:
    """Iterations, their average rate in Gb/s, and bytes. Raises _FailedError when nothing gets through."""
    wanted = None if options.duration_s else options.iterations * size
    moved, passed_s = 0.0, 0.0
    while True:
        gbps = _rate(own, peer, size)
        if gbps is None or _is_gone(connection):
            time.sleep(RETRIES_S)
            raise _FailedError(_GAVE_UP)
        bytes_a_second = gbps * 1e9 / 8
        left_s = options.duration_s - passed_s if wanted is None else (wanted - moved) / bytes_a_second
        step_s = min(TICK_S, left_s)
        time.sleep(step_s)
        passed_s += step_s
        moved += bytes_a_second * step_s
        _count(own, sent=int(bytes_a_second * step_s), received=0)
        if step_s == left_s:
            average = moved * 8 / 1e9 / passed_s
            return options.iterations if wanted is not None else int(moved // size), average, int(moved)
        _say(connection, {"bytes": sent_before + int(moved), "done": False})


def _receive_report(own: _Own, connection: socket.socket, received: int) -> dict[str, Any]:
    """Count what comes in until the other end reports. Raises _FailedError when it leaves."""
    while True:
        told = _hear(connection)
        _count(own, sent=0, received=told["bytes"] - received)
        received = told["bytes"]
        if told["done"]:
            return told


def _rate(own: _Own, peer: str, size: int) -> float | None:
    """Gb/s between the two adapters now; None when nothing gets through."""
    live: Live = look(own.fabric)
    far = live.devices.get(peer)
    near = read_port(own.hardware, own.device.hca or "")
    if far is None or near is None or not near.active or not live.lid(far):
        return None
    # Both ends may be one adapter, which sends to itself at its link's rate.
    gbps = near.gbps if far.guid == own.device.guid else live.gbps_between(own.device, far)
    return None if gbps is None else EFFICIENCY * gbps * min(1.0, size / FULL_SPEED_BYTES)


def _count(own: _Own, *, sent: int, received: int) -> None:
    try:
        carry(own.hardware, own.device.hca or "", sent_words=sent // 4, received_words=received // 4)
    except (OSError, ValueError):
        raise _FailedError(_NO_PEER) from None


def _say(connection: socket.socket, message: dict[str, Any]) -> None:
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        raise _FailedError(_GAVE_UP) from None


def _hear(connection: socket.socket) -> dict[str, Any]:
    """One line of the other end, read byte by byte: what follows it stays in the socket."""
    line = bytearray()
    try:
        while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
            byte = connection.recv(1)
            if not byte:
                raise _FailedError(_NO_PEER)
            line += byte
        message = json.loads(line)
    except (OSError, ValueError):
        raise _FailedError(_NO_PEER) from None
    if not isinstance(message, dict):
        raise _FailedError(_NO_PEER)
    return message


def _is_gone(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(10)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
