"""One InfiniBand fabric in ibsim, run by real OpenSM processes, and the real tools of the nodes that sit on it.

The processes meet at a socket of the abstract namespace, so that nothing is listened for on any network.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from llmgw.fabric.managers import Managers, read_managers

Found = TypeVar("Found")

UMAD2SIM = Path("/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so")
PROGRAMS = ("opensm", "ibsim", "saquery", "ibnetdiscover")
WAIT_S = 90.0
"""Nothing takes so long, except on a machine that has much else to do."""
LOOK_EVERY_S = 0.1
_NUMBERS = itertools.count(1)
# With its own settings most of a minute passes until a standby notices, with these some 4 s. Of its own accord
# it looks at nothing: the simulator's library lets no lost question time out, and an OpenSM that asks one that is
# just starting may wait for ever.
OPENSM_SETTINGS = """sminfo_polling_timeout 1000
polling_retry_number 3
sweep_interval 0
sweep_on_trap FALSE
force_log_flush TRUE
"""
# The simulator's library writes a sys-PID where its program runs, and leaves it there when that is killed.
# The adapter of a simulator's client is called ibsim0 whatever its name is on the fabric, and the simulator's
# own remark on each connection is no complaint of the tool.
_WRAPPER = """#!/bin/sh
adapter=mlx5_0 next=
for word in "$@"; do
  shift
  if [ -n "$next" ]; then adapter=$word word=ibsim0 next=; fi
  case $word in -C|--Ca) next=yes ;; esac
  set -- "$@" "$word"
done
# Where the simulator's client is killed, its copy of /sys stays: not in whatever folder this is called from.
cd @FOLDER@ || exit
complaints=$(mktemp)
SIM_HOST="@NODE@ $adapter" @SIMULATOR@ LD_PRELOAD=@PRELOAD@ @PROGRAM@ "$@" 2>"$complaints"
code=$?
grep -v ' sim_connect: attached ' "$complaints" >&2
rm -f "$complaints"
exit $code
"""


def missing() -> str | None:
    """What keeps the lab from running here; None when nothing does."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if not UMAD2SIM.exists():
        lacking.append("libumad2sim.so")
    if lacking:
        packages = "opensm ibsim-utils infiniband-diags"
        return f"{', '.join(lacking)} not installed (apt-get install --no-install-recommends {packages})"
    return None


class RealFabric:
    """A fabric in ibnetdiscover's form, brought to life. `managers`: names of their adapters, best first."""

    def __init__(self, folder: Path, name: str, text: str, managers: list[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._folder = folder
        self._socket = f"llmgw-lab-{os.getpid()}-{next(_NUMBERS)}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        net = folder / "net"
        net.write_text(text)
        log = (folder / "ibsim.log").open("wb")
        with log:
            self._ibsim = subprocess.Popen(
                [_which("ibsim"), "-s", str(net)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "IBSIM_SOCKNAME": self._socket},
                cwd=folder,
                start_new_session=True,
                preexec_fn=_end_with_us,
            )
        wait_for(lambda: f"@{self._socket}:ctl" in Path("/proc/net/unix").read_text(), "ibsim listens")
        for at, adapter in enumerate(managers):
            self.start_manager(adapter, 14 - 2 * at)

    def start_manager(self, adapter: str, priority: int) -> None:
        """Start an OpenSM on an adapter, such as `ib-a-sm1 mlx5_0`, and wait until it is master or standby."""
        folder = self._folder / adapter.replace(" ", "-")
        folder.mkdir(exist_ok=True)
        config = folder / "opensm.conf"
        config.write_text(OPENSM_SETTINGS)
        with (folder / "output").open("wb") as output:
            self._processes[adapter] = subprocess.Popen(
                [_which("opensm"), "-F", str(config), "-f", str(folder / "log"), "-p", str(priority)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # It writes a copy of /sys there, which stays when it is killed.
                cwd=folder,
                env={
                    **os.environ,
                    "SIM_HOST": adapter,
                    "IBSIM_SOCKNAME": self._socket,
                    "LD_PRELOAD": str(UMAD2SIM),
                    "OSM_TMP_DIR": str(folder),
                    "OSM_CACHE_DIR": str(folder),
                },
                start_new_session=True,
                preexec_fn=_end_with_us,
            )
        wait_for(lambda: has_decided(folder / "log"), f"{adapter} is master or standby")
        self.have_them_look()

    def have_them_look(self) -> None:
        """A master lists those that it finds when it looks at the whole fabric, which this signal has it do."""
        for process in self._processes.values():
            process.send_signal(signal.SIGHUP)

    def last_words(self, lines: int = 15) -> str:
        """The end of each manager's log."""
        logs = {adapter: self._folder / adapter.replace(" ", "-") / "log" for adapter in self._processes}
        return "\n".join(
            f"{adapter}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
            for adapter, log in logs.items()
            if log.exists()
        )

    def stop_manager(self, adapter: str) -> None:
        """End an OpenSM: it hands nothing over, and answers nothing any more."""
        self._processes[adapter].terminate()
        self._processes.pop(adapter).wait(10)

    def unlink(self, device: str, port: int) -> None:
        """Pull a cable at one of its ends, `S-` or `H-` and the GUID."""
        self._command(f'Unlink "{device}"[{port}]')

    def relink(self, device: str, port: int) -> None:
        """Put it back."""
        self._command(f'ReLink "{device}"[{port}]')

    def write_tools(self, folder: Path, node: str) -> None:
        """Write the `saquery` and `ibnetdiscover` of a node: Debian's, which take `-C mlx5_0` as its own."""
        for program in ("saquery", "ibnetdiscover"):
            text = tool_text(node, {"IBSIM_SOCKNAME": self._socket}, self._folder, Path(_which(program)))
            path = folder / program
            path.unlink(missing_ok=True)
            path.write_text(text)
            path.chmod(0o755)

    def stop(self) -> None:
        """End everything."""
        for process in [*self._processes.values(), self._ibsim]:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(10)
        assert self._ibsim.stdin is not None
        self._ibsim.stdin.close()

    def _command(self, line: str) -> None:
        assert self._ibsim.stdin is not None
        self._ibsim.stdin.write(line.encode() + b"\n")
        self._ibsim.stdin.flush()


def tool_text(node: str, simulator: Mapping[str, str], folder: Path, program: Path) -> str:
    """A program that runs a tool of infiniband-diags on a node's adapters. `simulator`: the variables by which
    its library finds the simulator; `folder`: where it may leave files."""
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in simulator.items())
    return (
        _WRAPPER.replace("@NODE@", node)
        .replace("@SIMULATOR@", variables)
        .replace("@FOLDER@", shlex.quote(str(folder)))
        .replace("@PRELOAD@", str(UMAD2SIM))
        .replace("@PROGRAM@", shlex.quote(str(program)))
    )


def ask(program: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a tool: its exit code, output and complaints."""
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout, done.stderr


def ask_managers(folder: Path, adapter: str = "mlx5_0") -> Managers:
    """What a node's saquery tells of the managers."""
    _, said, complaints = ask(folder / "saquery", "-C", adapter, "-P", "1", "SMIR")
    return read_managers(said + complaints)


def wait_for(
    look: Callable[[], Found], what: str, timeout_s: float = WAIT_S, story: Callable[[], str] = str
) -> Found:
    """What `look` finds, once it finds something; it fails with what was seen last, and the story."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}; seen last: {found!r}\n{story()}")
        time.sleep(LOOK_EVERY_S)
    return found


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_us() -> None:
    """Let the kernel end a child with this process, whatever ends it: an ibsim without a console never rests."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def has_decided(log: Path) -> bool:
    """Whether an OpenSM with this log is master or standby."""
    said = log.read_text() if log.exists() else ""
    return "SUBNET UP" in said or "Entering STANDBY state" in said


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _which(name: str) -> str:
    found = shutil.which(name, path=_path())
    assert found is not None
    return found
