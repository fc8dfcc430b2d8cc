"""Run a tool of the machine for its output: with a time limit, bounded, and with a sentence for every way
in which it can fail. Knows no tool by name.
"""

from __future__ import annotations

import ctypes
import errno
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_READ_BYTES = 65536
_KILL_WAIT_S = 2.0
# A child of the program may hold the pipe open after the program itself has ended.
_PIPE_POLL_S = 0.1

# PR_SET_PDEATHSIG, linux/prctl.h: the kernel ends the program when the thread that waits for it is gone.
_PARENT_DEATH_SIGNAL = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

_stuck_lock = threading.Lock()
_stuck: dict[str, subprocess.Popen[bytes]] = {}


class ProgramError(Exception):
    """The program could not be run, or did not end in time. `remedy` says what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy


@dataclass(frozen=True, kw_only=True)
class ProgramOutput:
    """What a program said. `cut` is True when it said more than the limit and was ended for it."""

    code: int
    stdout: str
    stderr: str
    cut: bool = False


def run_program(
    argv: Sequence[str],
    *,
    timeout_s: float,
    output_bytes_max: int,
    env: Mapping[str, str] | None = None,
    user: tuple[int, int] | None = None,
) -> ProgramOutput:
    """Run `argv` without input, in the C locale, and return its output whatever its exit code. `env` is put on
    top of this process's environment; `user` (user and group) is whose rights it gets where this one is root.

    Raises ProgramError when it cannot be started or is not done after `timeout_s`; it is killed then, with
    its process group. A program that even SIGKILL does not end (a driver that hangs in the kernel) is left
    behind, and not started again before it is gone: else every reading would add one.
    """
    name = argv[0]
    with _stuck_lock:
        held = _stuck.get(name)
        if held is not None and held.poll() is None:
            raise ProgramError(
                f"{name} still hangs in the kernel (pid {held.pid}) and cannot be killed",
                "look at the kernel log (dmesg) for the driver's error; usually only a reboot helps",
            )
        _stuck.pop(name, None)
    process = _start(argv, env or {}, user if os.geteuid() == 0 else None)
    try:
        return _collect(process, name, timeout_s, output_bytes_max)
    finally:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _start(argv: Sequence[str], env: Mapping[str, str], user: tuple[int, int] | None) -> subprocess.Popen[bytes]:
    name = argv[0]
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,
            env={**os.environ, "LC_ALL": "C", **env},
            user=user[0] if user is not None else None,
            group=user[1] if user is not None else None,
            extra_groups=[] if user is not None else None,
        )
    except FileNotFoundError:
        raise ProgramError(f"{name} does not exist (or its interpreter does not)", "correct its path") from None
    except PermissionError:
        raise ProgramError(f"{name} is not executable by this user", f"chmod a+rx {name}") from None
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            raise ProgramError(
                f"{name} is not a program for this machine", "install the one for this architecture"
            ) from None
        raise ProgramError(f"{name} cannot be started: {error.strerror}", "correct its path") from None


def _die_with_parent() -> None:
    """In the child: an agent that is killed leaves no program behind that it has asked and that does not end."""
    if _LIBC is not None:
        _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _collect(
    process: subprocess.Popen[bytes], name: str, timeout_s: float, output_bytes_max: int
) -> ProgramOutput:
    assert process.stdout is not None
    assert process.stderr is not None
    texts = {"stdout": bytearray(), "stderr": bytearray()}
    deadline = time.monotonic() + timeout_s
    cut = False
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, "stdout")
        selector.register(process.stderr, selectors.EVENT_READ, "stderr")
        while selector.get_map() and not cut:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            events = selector.select(min(left_s, _PIPE_POLL_S))
            if not events and process.poll() is not None:
                break
            for key, _ in events:
                data = os.read(key.fd, _READ_BYTES)
                if not data:
                    selector.unregister(key.fileobj)
                texts[key.data] += data
            cut = sum(map(len, texts.values())) > output_bytes_max
    if not cut:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _kill(process, name)
            raise ProgramError(
                f"{name} did not answer within {timeout_s:g} s and was killed",
                "look at the kernel log (dmesg) for errors of the driver",
            ) from None
    _kill(process, name)
    return ProgramOutput(
        code=process.returncode if process.returncode is not None else -signal.SIGKILL,
        stdout=texts["stdout"][:output_bytes_max].decode("utf-8", "replace"),
        stderr=texts["stderr"][:output_bytes_max].decode("utf-8", "replace"),
        cut=cut,
    )


def _kill(process: subprocess.Popen[bytes], name: str) -> None:
    """End the program's process group, also what outlived the program itself."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        process.wait(_KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        with _stuck_lock:
            _stuck[name] = process
