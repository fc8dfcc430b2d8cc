"""`scripts/lab`: the command line."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time

from llmgw.config.errors import SentenceError
from tests.lab.machines import lab
from tests.lab.machines.machine import is_on, ssh_command
from tests.lab.machines.places import FLEET


def main() -> int:
    """Do what the command line says; 0, or 1 with a sentence."""
    arguments = _parser().parse_args()
    # Whoever reads only the first lines is told no more, and nothing is complained of.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        return _do(arguments)
    except SentenceError as error:
        print(f"scripts/lab: {error}", file=sys.stderr)
        return 1


def _do(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "up":
            began = time.monotonic()
            lab.up(lambda line: print(line, file=sys.stderr))
            print(f"The lab is up after {time.monotonic() - began:.1f} s.")
            _print_status(lab.status())
        case "base":
            print(lab.base(lambda line: print(line, file=sys.stderr)))
        case "down":
            print("The lab is down." if lab.down() else "There was no lab.")
        case "status":
            status = lab.status()
            if arguments.output == "json":
                print(json.dumps(status, indent=2))
            else:
                _print_status(status)
            return 0 if status["up"] else 1
        case "ssh":
            machine = FLEET.get(arguments.name)
            if machine is None or not is_on(machine):
                lab.status()
                print(
                    f"scripts/lab: no machine {arguments.name!r} has power: scripts/lab status", file=sys.stderr
                )
                return 1
            command = ssh_command(arguments.name, *arguments.words)
            os.execvp(command[0], command)
        case "kill":
            lab.kill(arguments.name)
        case "boot":
            lab.power_on(arguments.name)
        case "cut":
            lab.cut(arguments.name, from_server=arguments.cut_from is not None)
        case "heal":
            lab.heal(arguments.name)
    return 0


def _print_status(status: dict[str, object]) -> None:
    if not status["up"]:
        print("No lab is up.")
        return
    rows = [["MACHINE", "ADDRESS", "FABRIC", "POWER", "NETWORK"]]
    machines, managers = status["machines"], status["managers"]
    assert isinstance(machines, list)
    assert isinstance(managers, list)
    rows += [
        [one["name"], one["address"], one["fabric"] or "-", one["power"], one["network"]] for one in machines
    ]
    _print_rows(rows)
    _print_rows(
        [["MANAGER", "FABRIC", "STATE"], *([one["name"], one["fabric"], one["state"]] for one in managers)]
    )


def _print_rows(rows: list[list[str]]) -> None:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/lab",
        description="Four real systemd nodes and a control host in network namespaces of this machine, with "
        "simulated GPUs and adapters on two fabrics with real subnet managers. Needs root and Debian's packages.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("up", help="bring it up: every machine answers by ssh then")
    commands.add_parser("base", help="build what machines are made from, which the first `up` would do")
    commands.add_parser("down", help="take it away, whatever is left of it")
    status = commands.add_parser("status", help="machines and subnet managers; exit code 1 when no lab is up")
    status.add_argument("-o", "--output", choices=["json"], help="for programs")
    ssh = commands.add_parser("ssh", help="run a command on a machine, or a shell")
    ssh.add_argument("name", metavar="NODE", help="node01 to node04, or server")
    ssh.add_argument("words", metavar="COMMAND", nargs=argparse.REMAINDER)
    kill = commands.add_parser("kill", help="cut a machine's power, or kill a subnet manager")
    boot = commands.add_parser("boot", help="power it on again, or start the manager again")
    cut = commands.add_parser("cut", help="pull a machine's cable")
    cut.add_argument(
        "--from",
        dest="cut_from",
        choices=["server"],
        help="lose only what agent and server say to each other; the engines stay reachable",
    )
    heal = commands.add_parser("heal", help="give a machine its network back")
    for command in (kill, boot, cut, heal):
        command.add_argument("name", metavar="NODE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
