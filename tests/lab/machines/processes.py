"""Processes of the lab: started apart from whoever starts them, found again by their mark, and ended."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.machines.errors import LabError
from tests.lab.machines.needs import PATH
from tests.lab.machines.places import MARK, SWITCH

_END_S = 30.0


def run(*words: str, what: str, timeout_s: float = 30.0) -> str:
    """The output of a program of this machine. Raises LabError: `what` could not be done."""
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": PATH},
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        complaint = done.stderr.strip() or f"exit code {done.returncode}"
        raise LabError(f"{what} failed ({shlex.join(words)}): {complaint}")
    return done.stdout


def start(
    name: str,
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> int:
    """Start a program in a session and control groups of its own, marked with `name`; returns its pid."""
    groups = [folder / name for folder in _hierarchies()]
    for group in groups:
        group.mkdir(parents=True, exist_ok=True)
    enter = "".join(f"echo $$ > {shlex.quote(str(group))}/cgroup.procs && " for group in groups)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["sh", "-c", f'{enter}exec "$@"', "sh", *command],
            stdin=stdin,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env={**os.environ, "PATH": PATH, **(env or {}), MARK: name},
            start_new_session=True,
        )
    return process.pid


def pids_of(name: str | None = None) -> list[int]:
    """The lab's own processes, or those of one name; not what runs inside machines."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rpartition(") ")[2][:1]
        except OSError:
            continue
        mark = next((entry for entry in environment if entry.startswith(f"{MARK}=".encode())), None)
        if mark is None or state == "Z":
            continue
        if name is None or mark == f"{MARK}={name}".encode():
            found.append(int(folder.name))
    return found


def pids_in(namespace: str) -> list[int]:
    """Every process in a network namespace, whoever started it."""
    try:
        place = os.stat(f"/run/netns/{namespace}")
    except FileNotFoundError:
        return []
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                at = os.stat(folder / "ns/net")
            except OSError:
                continue
            if (at.st_dev, at.st_ino) == (place.st_dev, place.st_ino):
                found.append(int(folder.name))
    return found


def end(name: str | None = None, namespace: str | None = None) -> None:
    """Kill the processes of a name (None: all of the lab), and those in a namespace. Raises LabError."""
    deadline = time.monotonic() + _END_S
    while True:
        left = {*pids_of(name), *(pids_in(namespace) if namespace else [])}
        left.discard(os.getpid())
        if not left:
            return
        if time.monotonic() > deadline:
            raise LabError(f"{name or 'the lab'} does not end: {sorted(left)} survive SIGKILL; look at dmesg")
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        # Of our own children nobody else takes leave.
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.02)


def remove_groups(name: str | None = None) -> None:
    """Take away the control groups of a name, or all of the lab; they stay where something still runs in them."""
    deadline = time.monotonic() + _END_S
    for top in groups(name):
        # What was killed is counted for a moment longer.
        while top.is_dir() and time.monotonic() < deadline:
            for folder, _, _ in os.walk(top, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    pass
            time.sleep(0.01)


def groups(name: str | None = None) -> list[Path]:
    """The control groups of a name, or all of the lab, that there are."""
    return [top for top in ((at / name if name else at) for at in _hierarchies()) if top.is_dir()]


def _hierarchies() -> list[Path]:
    """Where systemd and its containers keep their control groups: on this machine one place, or two."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 ") or (kind.startswith("cgroup ") and "name=systemd" in kind):
            found.append(Path(fields.split()[4]) / SWITCH)
    return found
