"""Asks an engine's program for its whole help and its version: bounded, and with a sentence for every failure.

The real ones import gigabytes to say it and take up to 20 s.
"""

from __future__ import annotations

import os
import platform
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from llmgw.config.errors import SentenceError
from llmgw.engines.base import EngineAdapter
from llmgw.engines.help_rules import HELP_COLUMNS, HelpRules, help_rules, version_in
from llmgw.engines.help_text import NotHelpError, read_help, without_colours
from llmgw.engines.offers import why_not_startable
from llmgw.engines.widest import widest_commands
from llmgw.hardware.programs import (
    NoProgramError,
    ProgramError,
    ProgramHangsError,
    ProgramOutput,
    run_program,
)
from llmgw.messages.agent import HELP_CHARS_MAX

HELP_LIMIT_S = 60.0
# No colours; and with `python -m`, no package that happens to lie in the current folder.
_PLAIN = {"NO_COLOR": "1", "PYTHON_COLORS": "0", "TERM": "dumb", "PYTHONSAFEPATH": "1"}
_LAST_LINE_CHARS_MAX = 300
_VERSION_BYTES_MAX = 64 * 1024
# /usr/include/elf.h, e_machine
_MACHINES = {0x03: "i386", 0x28: "arm", 0x3E: "x86_64", 0xB7: "aarch64", 0xF3: "riscv", 0x15: "ppc64"}


class HelpError(SentenceError):
    """The program did not give its help; the sentence says why and what to do."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class EngineTexts:
    """An engine's help; that of the programs which are started beside it (None: it could not be asked)."""

    text: str
    version: str | None
    sidecars: dict[str, str | None] = field(default_factory=dict)


def ask_engine(
    adapter: EngineAdapter,
    program: str,
    env: Mapping[str, str],
    *,
    rules: HelpRules | None = None,
    limit_s: float = HELP_LIMIT_S,
    become: Mapping[str, Any] | None = None,
    stop: threading.Event | None = None,
) -> EngineTexts:
    """The texts of the engine whose program (or interpreter) is `program`. Takes at most `limit_s`.

    `rules` default to those of the adapter's own form. `env` is what the programs run with, beside what makes
    their texts wide and plain; `become` is whom they run as, as in `run_program`. Raises HelpError, also when
    `stop` is set meanwhile. A program beside it that is not installed is left out.
    """
    env = {**env, "COLUMNS": str(HELP_COLUMNS), **_PLAIN}
    problem = why_not_startable(program, env.get("PATH"))
    if problem is not None:
        raise HelpError("; ".join(problem))
    asking = _Asking(env, limit_s, become, stop)
    rules = rules or help_rules(adapter.name)
    with ThreadPoolExecutor() as pool:
        beside = {
            name: pool.submit(asking.help_beside, path, help_rules(name))
            for name, path in _sidecars(adapter, program, env.get("PATH")).items()
        }
        text = asking.help(program, rules)
        sidecars = {name: asked.result() for name, asked in beside.items()}
    return EngineTexts(text=text, version=asking.version(program, text, rules), sidecars=sidecars)


class _Asking:
    """One round of questions: the environment and the time that they share."""

    def __init__(
        self,
        env: Mapping[str, str],
        limit_s: float,
        become: Mapping[str, Any] | None,
        stop: threading.Event | None,
    ) -> None:
        self._env = env
        self._deadline = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._become = become
        self._stop = stop

    def help(self, program: str, rules: HelpRules) -> str:
        """What the program prints when it is asked for its help. Raises HelpError."""
        command = " ".join([program, *rules.ask])
        try:
            output = self._run(program, rules.ask, HELP_CHARS_MAX)
        except ProgramHangsError:
            raise HelpError(
                f"`{command}` hangs: it had not ended after {self._limit_s:g} s and was killed; run it by hand "
                "to see what it waits for"
            ) from None
        except NoProgramError:
            raise HelpError(f"{program} cannot be run (Exec format error): {self._what_it_is(program)}") from None
        except ProgramError as error:
            raise HelpError(f"{error}; {error.remedy}") from None
        if output.cut:
            raise HelpError(f"`{command}` printed more than {HELP_CHARS_MAX} bytes, which is no help text")
        last = _last_line(output)
        if output.code != 0:
            said = f"; its last line: {last}" if last else " and printed nothing"
            raise HelpError(f"`{command}` {_ended(output.code)}{said}{_hint(output)}")
        if last is None:
            raise HelpError(f"`{command}` printed nothing; is {program} the right program?")
        return output.stdout if output.stdout.strip() else output.stderr

    def help_beside(self, program: str, rules: HelpRules) -> str | None:
        """The same of a program beside the engine, or None."""
        try:
            return self.help(program, rules)
        except HelpError:
            return None

    def version(self, program: str, text: str, rules: HelpRules) -> str | None:
        """The version in the text, or as the program says it while there is time; None when it does not."""
        try:
            version = read_help(text, rules).version
        except NotHelpError:
            return None
        if version is not None or rules.ask_version is None:
            return version
        try:
            output = self._run(program, rules.ask_version, _VERSION_BYTES_MAX)
        except ProgramError:
            return None
        return version_in(output.stdout) or version_in(output.stderr) if output.code == 0 else None

    def _run(self, program: str, arguments: Sequence[str], bytes_max: int) -> ProgramOutput:
        left_s = max(0.0, self._deadline - time.monotonic())
        return run_program(
            [program, *arguments],
            timeout_s=left_s,
            output_bytes_max=bytes_max,
            env=self._env,
            become=self._become,
            stop=self._stop,
        )

    def _what_it_is(self, program: str) -> str:
        """What a file is that the kernel does not run."""
        here = platform.machine()
        try:
            with open(shutil.which(program, path=self._env.get("PATH")) or program, "rb") as file:
                head = file.read(20)
        except OSError:
            head = b""
        if head.startswith(b"\x7fELF") and len(head) == 20:
            number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
            machine = _MACHINES.get(number, f"another architecture (ELF machine {number})")
            return f"it is built for {machine}, and this machine is {here}; install the one for {here}"
        return f"it is neither a program for {here} nor a script that begins with #!; correct the path"


def _sidecars(adapter: EngineAdapter, program: str, path: str | None) -> dict[str, str]:
    """Programs that replicas may start beside the engine, by name, and where those that are installed are."""
    found = {}
    for name, commands in widest_commands(adapter, program).items():
        beside = os.path.join(os.path.dirname(shutil.which(program, path=path) or program), name)
        for candidate in (commands[0][0], beside) if name != adapter.name else ():
            if name not in found and (where := shutil.which(candidate, path=path)) is not None:
                found[name] = where
    return found


def _last_line(output: ProgramOutput) -> str | None:
    """The last line that says something, on stderr before stdout when it failed."""
    for text in (output.stderr, output.stdout):
        for line in reversed(text.splitlines()):
            plain = "".join(char for char in without_colours(line) if char.isprintable()).strip()
            if plain:
                return plain[:_LAST_LINE_CHARS_MAX]
    return None


def _ended(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"exited with {code}"


def _hint(output: ProgramOutput) -> str:
    if "Failed to infer device type" in output.stderr + output.stdout:
        return "; vLLM prints its help only where it sees a GPU: ask it on a node, with --node NODE"
    return ""
