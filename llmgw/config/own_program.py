"""How llmgw starts itself again, as a router, an engine of the simulation or a node of the demo.

Installed as a package, that is this interpreter with `-m`; in a build that holds its own Python (PyInstaller),
the program itself. Its bootloader also changes the environment, which nothing that it starts may inherit.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import MutableMapping, Sequence

_OWN_LIBRARIES = "LD_LIBRARY_PATH"
# PyInstaller's bootloader keeps what was set before under this name (its manual, "Run-time Information").
_BEFORE = "LD_LIBRARY_PATH_ORIG"
# What one of its programs tells another of the same file: none of the business of any other.
_BOOTLOADER = "_PYI_"


def is_frozen() -> bool:
    """True in a build that holds its own Python."""
    return bool(getattr(sys, "frozen", False))


def own_program(*arguments: str) -> list[str]:
    """The command line that starts this same llmgw with `arguments`."""
    if is_frozen():
        return [sys.executable, *arguments]
    return [sys.executable, "-m", "llmgw", *arguments]


def own_module(module: str, *arguments: str) -> list[str]:
    """The command line that runs one of llmgw's modules as a program, as `python -m` does."""
    return [sys.executable, "-m", module, *arguments]


def own_python(code: str) -> list[str]:
    """The command line that runs Python with llmgw at hand; a build that holds its own (`is_frozen`) has none."""
    return [sys.executable, "-c", code]


def run_as_module(argv: Sequence[str]) -> bool:
    """In a build with its own Python, do what `own_module` asks for in `argv` (the program's name first).

    Returns False when it asks for nothing of the kind. The module ends the process as it likes.
    """
    if not is_frozen() or len(argv) < 3 or argv[1] != "-m" or argv[2].partition(".")[0] != "llmgw":
        return False
    sys.argv = [argv[0], *argv[3:]]
    runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
    return True


def leave_own_libraries(environ: MutableMapping[str, str]) -> None:
    """Give `environ` back the library path from before the bootloader, and forget what it left for itself.

    The loader of this process has read its path already. Without this, engines, nvidia-smi and ssh would load
    our libssl in place of theirs.
    """
    if not is_frozen():
        return
    before = environ.pop(_BEFORE, None)
    if before:
        environ[_OWN_LIBRARIES] = before
    else:
        environ.pop(_OWN_LIBRARIES, None)
    for name in [name for name in environ if name.startswith(_BOOTLOADER)]:
        del environ[name]
