"""How a command ends: one sentence on stderr and an exit code, never a traceback in anybody's face."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    UsageError = typer.BadParameter
else:
    # Typer brings its own Click since 0.2x and used the one beside it before; this names either's UsageError.
    UsageError = typer.BadParameter.__mro__[1]

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
_FULL = (errno.ENOSPC, errno.EDQUOT)


def ending(main: Callable[[], None]) -> int:
    """Run `main` and turn however it ends into an exit code, with what there is to say on stderr.

    A SentenceError is its sentences; a wrong command line is a sentence and 2; Ctrl-C is 130 and silence; a
    reader of our output that left is 141 and silence. Anything else is a defect: one sentence that says which
    file has the traceback, or the traceback itself with LLMGW_DEBUG=1.
    """
    try:
        main()
        sys.stdout.flush()
    except BaseException as error:
        return _code(error)
    return 0


def report_path(error: BaseException, environ: Mapping[str, str]) -> Path | None:
    """Write the traceback to a new file that only this user may read; None when no folder takes it."""
    text = "".join(traceback.format_exception(error))
    text = f"{' '.join(sys.argv[:3])}\nPython {sys.version}\n\n{text}"
    for folder in _report_folders(environ):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, name = tempfile.mkstemp(prefix="llmgw-error-", suffix=".txt", dir=folder)
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
        except (OSError, ValueError):
            continue
        return Path(name)
    return None


def _code(error: BaseException) -> int:
    leaves = _leaves(error)
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return EXIT_INTERRUPTED
    if all(isinstance(leaf, SentenceError) for leaf in leaves):
        for leaf in leaves:
            _say(str(leaf))
        return max(leaf.exit_code for leaf in leaves if isinstance(leaf, SentenceError))
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        _say(str(error.code))
        return EXIT_FAILURE
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if isinstance(error, typer.Abort):
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            return EXIT_INTERRUPTED
        _say("not confirmed")
        return EXIT_FAILURE
    if isinstance(error, UsageError.__mro__[1]):
        return _usage(error)
    if isinstance(error, BrokenPipeError) and _reader_is_gone():
        _discard_output()
        return EXIT_BROKEN_PIPE
    if isinstance(error, OSError) and error.errno in _FULL and _output_is_full():
        _discard_output()
        _say(
            f"the output could not be written ({error.strerror}): make room where it goes to, and run this again"
        )
        return EXIT_FAILURE
    return _defect(error)


def _leaves(error: BaseException) -> list[BaseException]:
    """The exceptions in a group of groups; tasks that fail together are told together."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _usage(error: BaseException) -> int:
    context = getattr(error, "ctx", None)
    code = int(getattr(error, "exit_code", EXIT_USAGE))
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        sys.stderr.write(context.get_help() + "\n")
        return code
    sentence = str(error.format_message()).rstrip(".") if hasattr(error, "format_message") else str(error)
    see = f"; see {context.command_path if context is not None else 'llmgw'} --help"
    _say(" ".join(sentence.split()) + see)
    return code


def _defect(error: BaseException) -> int:
    if os.environ.get("LLMGW_DEBUG") == "1":
        traceback.print_exception(error)
        return EXIT_FAILURE
    first = (str(error).strip().splitlines() or [""])[0]
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    path = report_path(error, os.environ)
    where = (
        f"the traceback is in {path}" if path else "no folder takes the traceback; set LLMGW_DEBUG=1 to see it"
    )
    _say(f"this is a defect in llmgw ({what}); {where}")
    return EXIT_FAILURE


def _say(text: str) -> None:
    """Each line as `error: …`. A stderr that is closed is nobody's problem any more."""
    with contextlib.suppress(OSError, ValueError):
        for line in text.splitlines() or ["failed without a reason"]:
            sys.stderr.write(f"error: {line}\n")
        sys.stderr.flush()


def _reader_is_gone() -> bool:
    """True when nobody reads our stdout any more; other pipes and sockets break too, and that is an error."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False


def _output_is_full() -> bool:
    """True when the disk that takes our stdout is full, and no other."""
    try:
        # Python forgets what it failed to write. One line's end more does no harm to the output of a failure.
        os.write(sys.stdout.fileno(), b"\n")
    except OSError as error:
        return error.errno in _FULL
    except ValueError:
        pass
    return False


def _discard_output() -> None:
    # The interpreter flushes stdout once more on its way out, and would complain then.
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _report_folders(environ: Mapping[str, str]) -> list[Path]:
    folders = [Path(tempfile.gettempdir())]
    state = environ.get("XDG_STATE_HOME") or ""
    if os.path.isabs(state):
        folders.insert(0, Path(state) / "llmgw")
    elif os.path.isabs(environ.get("HOME", "")):
        folders.insert(0, Path(environ["HOME"]) / ".local" / "state" / "llmgw")
    return folders
