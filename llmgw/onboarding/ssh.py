"""One shared connection to a node through the system's `ssh`: its configuration, agent and jump hosts count.

What runs there is a script that travels on standard input, with its files, into a folder of mode 0700 that goes
away however the script ends. Nothing that is secret stands in a command line, here or there.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from llmgw.onboarding.errors import OnboardError, StepError
from llmgw.onboarding.ssh_words import SSH_FAILED, explain_remote, explain_ssh, explain_sudo

CONNECT_TIMEOUT_S = 10
# A peer that is gone is noticed after three of these (ssh_config(5), ServerAliveCountMax).
ALIVE_EVERY_S = 15
STEP_TIMEOUT_S = 120.0
OUTPUT_BYTES_MAX = 4 * 1024 * 1024
_LOOK_EVERY_S = 0.1
"""How often the size of a node's output is looked at."""
# sun_path has 108 bytes with its final NUL (unix(7)), and ssh appends 17 characters while it makes the socket.
_SOCKET_PATH_MAX = 90
_PIECE_BYTES = 256 * 1024
_ADDRESS = re.compile(r"[A-Za-z0-9_\[:][A-Za-z0-9_.:%\[\]-]{0,254}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}")

# Words for any login shell: no exclamation mark and no newline, which csh would read within quotes. The script
# and its files come on standard input; a connection that breaks ends tar, and so the folder.
_BOOTSTRAP = (
    "umask 077; LC_ALL=C; export LC_ALL; r=$LLMGW_ROOT; t=llmgw-onboard.XXXXXXXX; d=$(mktemp -d $r{base}/$t) || "
    "d=$(mktemp -d $r/tmp/$t) || exit 73; "
    'trap "rm -rf $d" EXIT; trap "exit 74" HUP INT PIPE TERM; '
    "tar -xf - -C $d || exit 75; echo {begins}; cd / && sh $d/run.sh $d"
)
_BEGINS = "llmgw-onboard-begins"
"""Printed before the script's own words: a login shell's profile may print, too."""
# Asked through the shell that the scripts want: sudo may allow somebody `id` and not that.
_WHO = 'if [ $(id -u) = 0 ]; then echo root; else sudo -n sh -c "id -u"; fi'

SMALL_FILES = "/run"
"""Memory, not a disk: where keys wait on a node until they are in place."""
LARGE_FILES = "/var/tmp"


@dataclass(frozen=True, slots=True)
class Script:
    """What runs on a node as root: `text` is POSIX sh, its $1 the folder that holds `files` (name → content, or
    a path here). `base` is where that folder is made."""

    name: str
    text: str
    files: Mapping[str, bytes | Path]
    base: str = SMALL_FILES


class Ssh:
    """A connection. Use as a context manager: it ends with the last block, and its socket with it."""

    def __init__(
        self,
        address: str,
        *,
        node_id: str,
        user: str | None = None,
        config: Path | None = None,
    ) -> None:
        """`config` is a file for `ssh -F`; without one and without `user` the person's own configuration says
        all. Raises OnboardError for names that ssh would take for something else."""
        if not _ADDRESS.fullmatch(address):
            raise OnboardError(f"--addr {address!r} is neither an address nor a name of a host.")
        if user is not None and not _USER.fullmatch(user):
            raise OnboardError(f"--ssh-user {user!r} is not the name of a user.")
        self.address = address.strip("[]")
        self.node_id = node_id
        self._user = user
        self._config = config
        self._folder: Path | None = None
        self._become = ""
        self._options: list[str] = []
        self._connected = False

    def __enter__(self) -> Ssh:
        if shutil.which("ssh") is None:
            raise OnboardError("There is no ssh on this host: apt-get install openssh-client")
        self._folder = _private_folder()
        self._options = [
            *(["-F", str(self._config)] if self._config is not None else []),
            *(["-l", self._user] if self._user is not None else []),
            *("-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"),
            *("-o", f"ServerAliveInterval={ALIVE_EVERY_S}", "-o", "ServerAliveCountMax=3"),
            *("-o", "ControlMaster=auto", "-o", f"ControlPath={self._folder}/s", "-o", "ControlPersist=60"),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connected:
            self._end()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self) -> None:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["ssh", *self._options, "-O", "exit", self.address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=5,
                check=False,
            )

    def connect(self) -> str:
        """Reach the node and find a way to be root there. The name of who we are there first: `root` or `sudo`.

        Raises OnboardError with what ssh or sudo says against it, in a sentence.
        """
        if self._asks_about_new_keys():
            # An unknown key is remembered, as a new machine has one; a changed one is refused by this, too.
            self._options += ["-o", "StrictHostKeyChecking=accept-new"]
        self._connected = True
        code, out, said = self._run(f"sh -c '{_WHO}'", None, CONNECT_TIMEOUT_S * 4)
        if code == SSH_FAILED:
            raise explain_ssh(said, self.address, self.node_id)
        who = (out.split() or [""])[-1]
        if who == "root":
            return "root"
        if code != 0 or who != "0":
            raise explain_sudo(said or out, self.address)
        self._become = "sudo -n "
        return "sudo"

    def run(
        self,
        script: Script,
        *,
        timeout_s: float = STEP_TIMEOUT_S,
        sent: Callable[[int], None] | None = None,
    ) -> str:
        """Run a script as root and return what it printed. `sent` is told how many bytes have gone.

        Raises StepError when it failed there, OnboardError when the connection did.
        """
        command = f"{self._become}sh -c '{_BOOTSTRAP.format(base=script.base, begins=_BEGINS)}'"
        code, out, said = self._run(command, script, timeout_s, sent)
        if code == SSH_FAILED:
            raise explain_ssh(said, self.address, self.node_id)
        if code != 0:
            raise StepError(explain_remote(script.name, code, said, self.node_id), code, said)
        return out.partition(f"{_BEGINS}\n")[2]

    def _run(
        self,
        command: str,
        script: Script | None,
        timeout_s: float,
        sent: Callable[[int], None] | None = None,
    ) -> tuple[int, str, str]:
        # Files and no pipes: the shared connection stays behind in the background and keeps stderr open.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                ["ssh", *self._options, "--", self.address, command],
                stdin=subprocess.DEVNULL if script is None else subprocess.PIPE,
                stdout=out,
                stderr=said,
                env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
                # Without a terminal: the ssh to a jump host is not in batch mode, and would ask there.
                start_new_session=True,
            )
            # Of the whole, sending included: a machine whose disk hangs reads no further and says nothing.
            watch = _Watch(process, (out.fileno(), said.fileno()), timeout_s)
            watch.start()
            try:
                if script is not None:
                    assert process.stdin is not None
                    with suppress(BrokenPipeError):  # why the other side left is in what it said
                        _send(script, process.stdin, sent)
                        process.stdin.close()
                code = process.wait()
            finally:
                watch.end()
                if process.poll() is None:
                    process.kill()
                    process.wait()
                if process.stdin is not None:
                    with suppress(OSError):
                        process.stdin.close()
            if watch.problem is not None:
                raise OnboardError(
                    f"{self.node_id}: {script.name if script else 'the first command'} {watch.problem}; look at "
                    f"the node (ssh {self.address}), then run this again."
                )
            return code, _text(out), _text(said)

    def _asks_about_new_keys(self) -> bool:
        """True unless the person's configuration decides about unknown host keys: `ask` is ssh's own default."""
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                ["ssh", *self._options, "-G", self.address],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
            return re.search(r"^stricthostkeychecking ask$", done.stdout, re.MULTILINE) is not None
        return False


class _Watch(threading.Thread):
    """Ends a process that takes too long, or writes more than anybody asked for: its output is on our disk."""

    def __init__(self, process: subprocess.Popen[bytes], files: tuple[int, ...], timeout_s: float) -> None:
        super().__init__(daemon=True)
        self.problem: str | None = None
        self._process = process
        self._files = files
        self._timeout_s = timeout_s
        self._ended = threading.Event()

    def run(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        while self.problem is None and not self._ended.wait(min(_LOOK_EVERY_S, deadline - time.monotonic())):
            if any(os.fstat(file).st_size > OUTPUT_BYTES_MAX for file in self._files):
                self.problem = f"printed more than {OUTPUT_BYTES_MAX // 2**20} MiB"
            elif time.monotonic() >= deadline:
                self.problem = f"did not end within {self._timeout_s:g} s"
        if self.problem is not None:
            self._process.kill()

    def end(self) -> None:
        """No longer watch. The process is over, or about to be ended."""
        self._ended.set()
        self.join()


def _send(script: Script, stream: IO[bytes], sent: Callable[[int], None] | None) -> None:
    writer = _Counted(stream, sent)
    with tarfile.open(fileobj=writer, mode="w|", format=tarfile.GNU_FORMAT, bufsize=_PIECE_BYTES) as tar:  # type: ignore[call-overload]
        for name, content in {"run.sh": script.text.encode(), **script.files}.items():
            entry = tarfile.TarInfo(name)
            entry.mode = 0o600
            if isinstance(content, bytes):
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
            else:
                with content.open("rb") as file:
                    entry.size = os.fstat(file.fileno()).st_size
                    tar.addfile(entry, file)


class _Counted:
    """A stream that tells how much went into it."""

    def __init__(self, stream: IO[bytes], sent: Callable[[int], None] | None) -> None:
        self._stream = stream
        self._sent = sent
        self._bytes = 0

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self._bytes += len(data)
        if self._sent is not None:
            self._sent(self._bytes)
        return len(data)


def _private_folder() -> Path:
    """A folder for the connection's socket, 0700, on a path that is short enough for one."""
    folder = Path(tempfile.mkdtemp(prefix="llmgw-ssh-"))
    if len(str(folder)) > _SOCKET_PATH_MAX - 2:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="llmgw-ssh-", dir="/tmp"))
    return folder


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(OUTPUT_BYTES_MAX).decode("utf-8", "replace")
