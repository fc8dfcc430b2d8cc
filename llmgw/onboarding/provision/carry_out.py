"""Doing what was planned, and removing the VM again when a step fails: only ever the one that this run made."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping
from queue import Empty, Full, Queue
from threading import Thread
from typing import Final

from llmgw.onboarding.provision.errors import ProvisionError
from llmgw.onboarding.provision.plan import Command, Plan, WriteFile
from llmgw.onboarding.provision.progress import Progress, transferred
from llmgw.onboarding.provision.proxmox import Proxmox, environment, run_to_end, said
from llmgw.onboarding.provision.signals import endings_held, endings_ignored

END_TIMEOUT_S: Final = 60.0
UNDO_TIMEOUT_S: Final = 300.0
UNDO_AGAIN_S: Final = 2.0
_TAIL_LINES: Final = 12
_LINE_CHARS_MAX: Final = 2000


class Worker:
    """Runs a plan's commands for one VM, whose disks are on `storage`.

    `mark` is in the description of the VM that this run makes.
    """

    def __init__(
        self,
        vmid: int,
        storage: str,
        mark: str,
        proxmox: Proxmox,
        environ: Mapping[str, str],
        progress: Progress,
    ) -> None:
        self._vmid = vmid
        self._storage = storage
        self._mark = mark
        self._proxmox = proxmox
        self._environ = environment(environ)
        self._progress = progress
        self._begun = False
        """Whether the first command was started: before that there is nothing of ours."""

    @contextlib.contextmanager
    def undoing(self) -> Iterator[None]:
        """Whatever ends the block, our VM is removed then. Raises what ended it, with what is left over."""
        try:
            yield
        except BaseException as error:
            with endings_ignored():
                left = self._undo()
            if left is not None:
                raise ProvisionError(f"{error}\n{left}" if isinstance(error, ProvisionError) else left) from error
            raise

    def run(self, command: Command) -> str:
        """One command, with progress; what it said last. Raises ProvisionError at failure and at its limit."""
        name = " ".join(command.argv[:3])
        process = None
        try:
            # Held: a signal in here would leave a command running that nobody knows of.
            with endings_held():
                self._begun = True
                process = self._started(command, name)
            tail = self._followed(process, command, name)
            code = _code_of(process, name)
        except BaseException:
            if process is not None:
                with endings_ignored():
                    _end(process, wait_first=command.argv[1] == "create")
            raise
        last = said("\n".join(tail)).rstrip(".")
        if code:
            raise ProvisionError(f"`{name}` failed while {command.doing}: {last or f'exit code {code}'}.")
        return last

    def _started(self, command: Command, name: str) -> subprocess.Popen[str]:
        try:
            # A session of its own: Ctrl-C reaches us alone, and we decide when the command ends.
            return subprocess.Popen(
                command.argv,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise ProvisionError(f"`{name}` cannot be run: {error.strerror}.") from None

    def _followed(self, process: subprocess.Popen[str], command: Command, name: str) -> deque[str]:
        """Tell how far a command is until its output ends; the last lines of it."""
        started_s = time.monotonic()
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        lines = _read_lines(process)
        while True:
            try:
                line = lines.get(timeout=1.0)
            except Empty:
                if process.poll() is not None:
                    break  # it is over, and what it started has its output still open
                line = ""
            if line is None:
                break
            elapsed_s = time.monotonic() - started_s
            if elapsed_s > command.timeout_s:
                raise ProvisionError(f"`{name}` has not come to its end for {command.timeout_s:g} s.")
            if far := transferred(line):
                self._progress.bytes(command.doing, *far)
                continue
            if line.strip():
                tail.append(line)
            self._progress.waiting(command.doing, elapsed_s)
        return tail

    def _undo(self) -> str | None:
        """Remove the VM if it is ours. A sentence about what is left over, None when nothing is."""
        if not self._begun:
            return None
        vmid = self._vmid
        remove = f"qm destroy {vmid} --skiplock 1"
        try:
            config = self._proxmox.config(vmid)
        except ProvisionError as error:
            return (
                f"Whether VM {vmid} is left over is not known ({error}): when `qm config {vmid}` shows "
                f"{self._mark} in its description it is this run's, and {remove} removes it; else it is somebody "
                "else's."
            )
        if config is None:
            return None
        if self._mark not in config.get("description", ""):
            if config.keys() - {"digest"} != {"lock"}:
                return None
            # Proxmox writes this before it makes the disks (PVE/AbstractConfig.pm, create_and_lock_config).
            return (
                f"VM {vmid} has a configuration with nothing but a lock, as an interrupted qm create leaves it: "
                f"if nobody else is making a VM {vmid} now, {remove} removes it."
            )
        self._progress.say(f"removing VM {vmid} again, which this run made")
        failed: str | None = None
        for last in (False, False, True):
            failed = self._remove(config)
            if failed is None:
                return None
            if not last:  # a disk that is still being closed, or a task that has the VM's lock
                time.sleep(UNDO_AGAIN_S)
        return (
            f"VM {vmid} could not be removed and is left over ({failed}): qm stop {vmid}; {remove} "
            "--destroy-unreferenced-disks 1"
        )

    def _remove(self, config: Mapping[str, str]) -> str | None:
        """Stop our VM and remove it with its disks, as far as they are this run's; what went wrong.

        Neither `--purge` nor `--destroy-unreferenced-disks`: they also take what others told backup jobs of this
        VMID, and disks of that number on storages that were away when this run looked.
        """
        vmid = self._vmid
        try:
            if self._proxmox.running(vmid):
                failed = self._ask(["qm", "stop", str(vmid), "--skiplock", "1", "--timeout", "60"])
                if failed is not None:
                    return failed
            attached = {value.split(",")[0].removeprefix("file=") for value in config.values()}
            # An import that was ended leaves a disk that nothing refers to. This storage had none of that number.
            for volume in self._unattached(attached):
                if (failed := self._ask(["pvesm", "free", volume])) is not None:
                    return failed
            if left := self._unattached(attached):
                return f"{left[0]} was not removed"
        except ProvisionError as error:
            return str(error)
        return self._ask(["qm", "destroy", str(vmid), "--skiplock", "1"])

    def _unattached(self, attached: set[str]) -> list[str]:
        return [volume for volume in self._proxmox.volumes(self._storage, self._vmid) if volume not in attached]

    def _ask(self, argv: list[str]) -> str | None:
        """Run a command of the undoing; what went wrong, None when it went well."""
        try:
            done = run_to_end(argv, self._environ, UNDO_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"`{' '.join(argv[:3])}` did not end within {UNDO_TIMEOUT_S:g} s"
        except OSError as error:
            return f"`{argv[0]}` cannot be run: {error.strerror}"
        return (
            None if done.returncode == 0 else said(done.stderr or done.stdout) or f"exit code {done.returncode}"
        )


@contextlib.contextmanager
def files_of(plan: Plan) -> Iterator[None]:
    """The plan's files are there within; those that are not kept go at the end. Raises ProvisionError."""
    try:
        for file in plan.files:
            _write(file)
        yield
    finally:
        for file in plan.files:
            if not file.kept:
                with contextlib.suppress(OSError):
                    file.path.unlink(missing_ok=True)


def _write(file: WriteFile) -> None:
    """Write whole or not at all; a file that is right already is left alone."""
    part = file.path.with_name(f".{file.path.name}.{os.getpid()}")
    try:
        if file.path.is_file() and file.path.read_bytes() == file.text.encode():
            return
        file.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, file.mode)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(file.text)
        part.chmod(file.mode)
        part.replace(file.path)
    except OSError as error:
        raise ProvisionError(f"{file.path} cannot be written: {error.strerror}; make room, or mend it.") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _read_lines(process: subprocess.Popen[str]) -> Queue[str | None]:
    """The output, line by line, and None at its end: read in a thread, so that time limits hold."""
    lines: Queue[str | None] = Queue(maxsize=1000)
    out = process.stdout
    assert out is not None

    def read() -> None:
        # qm rewrites its lines with carriage returns; text mode makes line ends of those.
        while line := out.readline(_LINE_CHARS_MAX):
            with contextlib.suppress(Full):  # nobody reads any more, and the command must not wait for us
                lines.put_nowait(line)
        lines.put(None)

    Thread(target=read, daemon=True).start()
    return lines


def _code_of(process: subprocess.Popen[str], name: str) -> int:
    """The exit code of a command whose output has ended."""
    try:
        return process.wait(timeout=END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ProvisionError(f"`{name}` closed its output and did not end for {END_TIMEOUT_S:g} s.") from None


def _end(process: subprocess.Popen[str], wait_first: bool) -> None:
    """End a command and all it started. `qm create` is short and cleans up best when left to its end."""
    if wait_first:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=END_TIMEOUT_S)
    for number in (signal.SIGTERM, signal.SIGKILL):
        # qm hands SIGTERM on to the task that it waits for (pve-common, RESTEnvironment.pm, fork_worker).
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline_s = time.monotonic() + END_TIMEOUT_S
        while _lives(process):
            if time.monotonic() >= deadline_s:
                break
            time.sleep(0.05)
        else:
            return


def _lives(process: subprocess.Popen[str]) -> bool:
    """Whether a command or anything of its session still runs: a copying qemu-img holds the disk open."""
    if process.poll() is None:
        return True
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
