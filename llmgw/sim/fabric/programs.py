"""The fabric's tools of a simulated node: `ibnetdiscover` and `saquery`, which answer as infiniband-diags 44.0.

Each is a file beside the node's hardware; what it says is read at that moment from the simulated fabric.
"""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import sys
import time
from pathlib import Path
from typing import NoReturn

import llmgw
from llmgw.config.own_program import own_module
from llmgw.sim.fabric.live import Live, Port, look, own_adapters
from llmgw.sim.fabric.plan import Device
from llmgw.sim.fabric.text import managers_text, map_text
from llmgw.sim.hardware_files import HardwareError, write_file

TOOLS = ("ibnetdiscover", "saquery", "ib_write_bw")


def write_tools(hardware: Path, fabric: Path, address: str) -> dict[str, Path]:
    """Write a node's tools beside its hardware: name → path. `address` is where the node can be reached.

    Raises HardwareError.
    """
    root = Path(llmgw.__file__).parent.parent
    # The package may be there only because of PYTHONPATH, which whoever runs a tool need not pass on.
    path = f'PYTHONPATH={shlex.quote(str(root))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    for tool in TOOLS:
        if tool == "ib_write_bw":
            command = own_module("llmgw.sim.fabric.perftest", str(hardware), str(fabric), address)
        else:
            command = own_module("llmgw.sim.fabric.programs", tool, str(hardware), str(fabric))
        text = f'#!/bin/sh\n{path} exec {shlex.join(command)} "$@"\n'
        write_file(hardware, tool, text, mode=0o755)
    return {tool: hardware / tool for tool in TOOLS}


class _Asked(argparse.Namespace):
    """The options of both tools that are understood here."""

    Ca: str | None
    Port: int | None
    version: bool
    what: list[str] | str
    """Of saquery the query; of ibnetdiscover the file to write, if not to standard output."""


def main(arguments: list[str]) -> int:
    """`TOOL HARDWARE FABRIC` and then what the user wrote. Returns the exit code of the tool."""
    tool, hardware, fabric = arguments[0], Path(arguments[1]), Path(arguments[2])
    asked = _parse(tool, arguments[3:])
    if asked.version:
        print(f"{tool} BUILD VERSION: 44.0")
        return 0
    try:
        live = look(fabric)
        device, port = _own_port(live, hardware, asked)
        if tool == "ibnetdiscover":
            return _discover(live, device, port, asked)
        return _ask_managers(live, device, port, asked)
    except HardwareError as error:
        print(f"{tool}: {error}", file=sys.stderr)
        return 1


def _parse(tool: str, arguments: list[str]) -> _Asked:
    parser = _Parser(prog=tool, add_help=False)
    parser.add_argument("-C", "--Ca")
    parser.add_argument("-P", "--Port", type=int)
    parser.add_argument("-t", "--timeout", type=int)
    parser.add_argument("-V", "--version", action="store_true")
    if tool == "ibnetdiscover":
        parser.add_argument("-o", "--outstanding_smps", type=int)
    parser.add_argument("what", nargs="*" if tool == "saquery" else "?", default=[])
    return parser.parse_args(arguments, namespace=_Asked())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}\n\nUsage: {self.prog} [options]", file=sys.stderr)
        sys.exit(255)


def _own_port(live: Live, hardware: Path, asked: _Asked) -> tuple[Device | None, Port | None]:
    """The adapter to ask through, by default the first that is ACTIVE, and its port; None where there is none."""
    if not (hardware / "dev" / "infiniband").exists() or asked.Port not in (None, 0, 1):
        return None, None
    own = own_adapters(live, hardware)
    if asked.Ca is not None:
        return own.get(asked.Ca, (None, None))
    active = [(device, port) for device, port in own.values() if port is not None and port.active]
    return active[0] if active else (None, None)


def _port_words(asked: _Asked) -> str:
    return f"{asked.Ca or '(null)'}:{asked.Port or 0}"


def _discover(live: Live, device: Device | None, port: Port | None, asked: _Asked) -> int:
    if device is None or port is None:
        pid, words = os.getpid(), _port_words(asked)
        print(f"ibwarn: [{pid}] mad_rpc_open_port: can't open UMAD port ({words})", file=sys.stderr)
        print(f"./libibnetdisc/ibnetdisc.c:802; can't open MAD port ({words})", file=sys.stderr)
        print("ibnetdiscover: iberror: failed: discover failed\n", file=sys.stderr)
        return 255
    text = map_text(live, device, time.ctime())
    if isinstance(asked.what, str):
        Path(asked.what).write_text(text)
    else:
        sys.stdout.write(text)
    return 0


def _ask_managers(live: Live, device: Device | None, port: Port | None, asked: _Asked) -> int:
    pid = os.getpid()
    if asked.what not in (["SMIR"], ["SMInfoRecord"]):
        print(
            f"ibwarn: [{pid}] simulated saquery answers SMIR alone, not {' '.join(asked.what)}", file=sys.stderr
        )
        return 1
    if device is None or port is None or not port.sm_lid:
        print(f"ibwarn: [{pid}] sa_get_handle: No SM/SA found on port {_port_words(asked)}", file=sys.stderr)
        print(f"ibpanic: [{pid}] main: Failed to bind to the SA: No such file or directory", file=sys.stderr)
        return 255
    master = live.fabric.master()
    reached = {one.guid for one in live.reach(device)}
    if live.fabric.electing or master is None or master.guid not in reached:
        print("Query SA failed: Connection timed out", file=sys.stderr)
        return errno.ETIMEDOUT
    sys.stdout.write(managers_text(live, time.time()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
