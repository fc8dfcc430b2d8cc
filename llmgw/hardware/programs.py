"""Run a tool of the machine for its output: with a time limit, bounded, and with a sentence for every way
in which it can fail. Knows no tool by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_READ_BYTES = 65536
_KILL_WAIT_S = 2.0
# A child of the program may hold the pipe open after the program itself has ended.
_PIPE_POLL_S = 0.1
_EXIT_POLL_S = 0.005

# PR_SET_PDEATHSIG, linux/prctl.h: the kernel ends the program when the thread that waits for it is gone.
_PARENT_DEATH_SIGNAL = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

_stuck_lock = threading.Lock()
_stuck: dict[str, subprocess.Popen[bytes]] = {}


class ProgramError(Exception):
    """The program could not be run, or did not end in time. `remedy` says what to do, `said` is what it had
    written by then, complaints last.
    """

    def __init__(self, what: str, remedy: str, said: str = "") -> None:
        super().__init__(what)
        self.remedy = remedy
        self.said = said


class NoProgramError(ProgramError):
    """The file is executable and still nothing that this machine can run."""


class ProgramHangsError(ProgramError):
    """It was not done in time."""


@dataclass(frozen=True, kw_only=True)
class ProgramOutput:
    """What a program said. `cut` is True when it said more than the limit and was ended for it."""

    code: int
    raw_stdout: bytes
    raw_stderr: bytes
    cut: bool = False

    @cached_property
    def stdout(self) -> str:
        """As text: what is no UTF-8 becomes replacement signs."""
        return self.raw_stdout.decode("utf-8", "replace")

    @cached_property
    def stderr(self) -> str:
        """As text, likewise."""
        return self.raw_stderr.decode("utf-8", "replace")


def run_program(
    argv: Sequence[str],
    *,
    timeout_s: float,
    output_bytes_max: int,
    env: Mapping[str, str] | None = None,
    become: Mapping[str, Any] | None = None,
    stop: threading.Event | None = None,
    started: Callable[[int], None] = lambda pid: None,
    gently_s: float = 0.0,
) -> ProgramOutput:
    """Run `argv` without input, in the C locale, and return its output whatever its exit code.

    `env` is its whole environment but for the locale; None is this process's own. `become` are Popen's `user`,
    `group` and `extra_groups` for a program that runs as somebody else; `started` is told its pid. Raises
    ProgramError when it cannot be started, is not done after `timeout_s`, or `stop` is set meanwhile; it is
    killed then, with its process group; where `gently_s` is given, the program alone gets SIGINT first, and so
    long to finish what must not be cut off. A program that even SIGKILL does not end (a driver that hangs in the
    kernel) is left behind, and not started again before it is gone: else every reading would add one.
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
    process = None
    try:
        with _interrupt_afterwards():
            process = _start(argv, os.environ if env is None else env, become or {})
        started(process.pid)
        return _collect(process, name, timeout_s, output_bytes_max, stop or threading.Event(), gently_s)
    except ProgramError:
        raise
    except BaseException:
        # Ctrl-C reaches this process only, since the program has a session of its own.
        if process is not None:
            _kill(process, name)
        raise
    finally:
        for pipe in (process.stdout, process.stderr) if process is not None else ():
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def _interrupt_afterwards() -> Iterator[None]:
    """Ctrl-C waits until a start is over: in its middle the program runs and nobody knows its pid yet.

    A second one does not wait, for a start that hangs on a dead disk.
    """
    # Only the main thread is interrupted; a handler of somebody else's does not raise in the middle of a call.
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = False

    def note(*_: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def _start(argv: Sequence[str], env: Mapping[str, str], become: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    name = argv[0]
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,
            env={**env, "LC_ALL": "C"},
            **become,
        )
    except FileNotFoundError:
        raise ProgramError(f"{name} does not exist (or its interpreter does not)", "correct its path") from None
    except PermissionError:
        raise ProgramError(f"{name} is not executable by this user", f"chmod a+rx {name}") from None
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            raise NoProgramError(
                f"{name} is not a program for this machine", "install the one for this architecture"
            ) from None
        raise ProgramError(f"{name} cannot be started: {error.strerror}", "correct its path") from None


def _die_with_parent() -> None:
    """In the child: an agent that is killed leaves no program behind that it has asked and that does not end."""
    if _LIBC is not None:
        _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _collect(
    process: subprocess.Popen[bytes],
    name: str,
    timeout_s: float,
    output_bytes_max: int,
    stop: threading.Event,
    gently_s: float,
) -> ProgramOutput:
    assert process.stdout is not None
    assert process.stderr is not None
    texts = {"stdout": bytearray(), "stderr": bytearray()}
    deadline = time.monotonic() + timeout_s
    cut = asked = False

    def over() -> bool:
        """Whether it is to be killed now; where it may end gently, it is asked to when that is first so."""
        nonlocal asked, deadline
        if asked:
            return time.monotonic() >= deadline
        if time.monotonic() < deadline and not stop.is_set():
            return False
        if not gently_s:
            return True
        asked, deadline = True, time.monotonic() + gently_s
        process.send_signal(signal.SIGINT)
        return False

    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, "stdout")
        selector.register(process.stderr, selectors.EVENT_READ, "stderr")
        while selector.get_map() and not cut:
            if over():
                break
            events = selector.select(max(0.0, min(deadline - time.monotonic(), _PIPE_POLL_S)))
            if not events and process.poll() is not None:
                break
            for key, _ in events:
                data = os.read(key.fd, _READ_BYTES)
                if not data:
                    selector.unregister(key.fileobj)
                texts[key.data] += data
            cut = sum(map(len, texts.values())) > output_bytes_max
    if not cut:
        # What closed its output and stays is waited for in steps: the wait itself cannot be stopped.
        while process.poll() is None and not over():
            time.sleep(_EXIT_POLL_S)
        if process.poll() is None or asked:
            _kill(process, name)
            said = "\n".join(_text(text, output_bytes_max) for text in texts.values())
            if stop.is_set():
                raise ProgramError(f"{name} was stopped before it had answered", "ask again", said)
            raise ProgramHangsError(
                f"{name} did not answer within {timeout_s:g} s and was killed",
                "look at the kernel log (dmesg) for errors of the driver",
                said,
            )
    _kill(process, name)
    return ProgramOutput(
        code=process.returncode if process.returncode is not None else -signal.SIGKILL,
        raw_stdout=bytes(memoryview(texts["stdout"])[:output_bytes_max]),
        raw_stderr=bytes(memoryview(texts["stderr"])[:output_bytes_max]),
        cut=cut,
    )


def _text(data: bytearray, bytes_max: int) -> str:
    return data[:bytes_max].decode("utf-8", "replace")


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
