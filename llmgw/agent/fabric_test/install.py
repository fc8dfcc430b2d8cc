"""Brings perftest onto a node that lacks it, with the distribution's package manager, and says why it cannot."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from llmgw.agent.fabric_test.command_line import BandwidthError
from llmgw.hardware.programs import ProgramError, ProgramOutput, run_program

PACKAGE = "perftest"
INSTALL_LIMIT_S = 300.0
GENTLY_S = 60.0
"""A package manager that is killed amid its work leaves a database that a person must mend, and with which
nothing else can be installed: it is interrupted, and finishes the package that it has in hand."""
_OUTPUT_BYTES_MAX = 1024 * 1024
_WORDS_CHARS_MAX = 300


@dataclass(frozen=True)
class PackageManager:
    """One distribution's: how it installs without asking, and how it learns what there is."""

    program: str
    install: tuple[str, ...]
    refresh: tuple[str, ...] = ()
    """Only those that do not refresh by themselves have one."""

    @property
    def by_hand(self) -> str:
        """What a person types."""
        return f"{self.program} install {PACKAGE}"


MANAGERS = (
    PackageManager(
        "apt-get",
        ("-y", "-q", "-o", "DPkg::Lock::Timeout=60", "--no-install-recommends", "install", PACKAGE),
        ("-q", "-o", "DPkg::Lock::Timeout=60", "update"),
    ),
    PackageManager("dnf", ("-y", "install", PACKAGE)),
    PackageManager("zypper", ("--non-interactive", "install", "--no-recommends", PACKAGE)),
)


def have_program(
    program: str, *, install: bool, root: bool, env: Mapping[str, str], stop: threading.Event | None = None
) -> tuple[str, bool]:
    """The program's path, and whether it was installed just now. Raises BandwidthError.

    Only a program that is looked up by its name is installed: a path in agent.yaml is the operator's own. Blocks,
    for minutes where something is installed.
    """
    path = env.get("PATH")
    found = shutil.which(program, path=path)
    if found is not None:
        return found, False
    if "/" in program:
        raise BandwidthError(
            f"{program} is not there, or not executable; correct discovery.ib_write_bw in agent.yaml"
        )
    manager = next((one for one in MANAGERS if shutil.which(one.program, path=path)), None)
    missing = f"{program} is not installed"
    by_hand = f"install the package {PACKAGE} there" + (f" ({manager.by_hand})" if manager else "")
    if not install:
        raise BandwidthError(f"{missing}; {by_hand}, or leave out --no-install")
    if not root:
        raise BandwidthError(f"{missing}, and the agent is not root, so it installs nothing; {by_hand}")
    if manager is None:
        known = ", ".join(one.program for one in MANAGERS)
        raise BandwidthError(f"{missing}, and there is no package manager that llmgw knows ({known}); {by_hand}")
    _install(manager, by_hand, env, stop)
    found = shutil.which(program, path=path)
    if found is None:
        raise BandwidthError(
            f"{manager.program} installed {PACKAGE}, and there is still no {program}; name it with "
            "discovery.ib_write_bw in agent.yaml"
        )
    return found, True


def _install(manager: PackageManager, by_hand: str, env: Mapping[str, str], stop: threading.Event | None) -> None:
    done = _run(manager, manager.install, by_hand, env, stop)
    if done.code != 0 and manager.refresh:
        # A list of packages that is missing or old: an image that was never updated has none.
        _run(manager, manager.refresh, by_hand, env, stop)
        done = _run(manager, manager.install, by_hand, env, stop)
    if done.code != 0:
        words = _last_words(done)
        raise BandwidthError(
            f"{manager.program} could not install {PACKAGE} (it exited with {done.code}: {words}); on a node "
            f"without a way to its repositories, {by_hand} from a file or a mirror"
        )


def _run(
    manager: PackageManager,
    arguments: tuple[str, ...],
    by_hand: str,
    env: Mapping[str, str],
    stop: threading.Event | None,
) -> ProgramOutput:
    try:
        return run_program(
            [shutil.which(manager.program, path=env.get("PATH")) or manager.program, *arguments],
            timeout_s=INSTALL_LIMIT_S,
            output_bytes_max=_OUTPUT_BYTES_MAX,
            env={**env, "DEBIAN_FRONTEND": "noninteractive"},
            stop=stop,
            gently_s=GENTLY_S,
        )
    except ProgramError as error:
        raise BandwidthError(f"{PACKAGE} could not be installed: {error}; {by_hand}") from None


def _last_words(output: ProgramOutput) -> str:
    lines = [line.strip() for line in (output.stdout + "\n" + output.stderr).splitlines() if line.strip()]
    wrong = [line for line in lines if line.startswith(("E:", "Error", "error", "No match", "No provider"))]
    return (wrong or lines or ["it said nothing"])[-1][:_WORDS_CHARS_MAX]
