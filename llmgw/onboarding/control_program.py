"""The program on the control host: /usr/local/bin/llmgw, from a file of a release or as it runs already."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from llmgw.config.own_program import is_frozen
from llmgw.onboarding.local_host import Action, ControlHostError, LocalHost
from llmgw.release.files import read_name
from llmgw.release.install import script
from llmgw.release.layout import PROGRAM, VERSIONS
from llmgw.release.signature import digest

# What the units do not see (ProtectHome=, PrivateTmp=).
_HIDDEN = ("/root", "/home", "/run/user", "/tmp", "/var/tmp")


def program(host: LocalHost, binary: Path | None, running: Path | None = None) -> list[Action]:
    """What makes PROGRAM the program that was asked for. Raises SentenceError.

    `running` is this very program (None: it is found out). One below VERSIONS is switched to; one of a virtual
    environment gets a symlink.
    """
    if binary is not None:
        return _from_release(host, binary)
    own = running or running_program()
    link = host.path(PROGRAM)
    if own is None:
        if link.exists():
            return []  # a checkout's own commands, on a host that has a program
        raise ControlHostError(
            f"This llmgw runs from its sources, which is no program to install; give the file of a release with "
            f"--binary, and it becomes {PROGRAM}."
        )
    if link.exists() and os.path.realpath(link) == os.path.realpath(own):
        return []
    if own.is_relative_to(VERSIONS):
        folder = f"{VERSIONS}/{own.relative_to(VERSIONS).parts[0]}"
        return [Action(f"switch {PROGRAM} to {folder}", lambda: _script(host, ["--switch", folder], folder))]
    refuse_out_of_reach(own)
    return [
        Action(f"link {PROGRAM} to {own}, the environment that this llmgw runs from", lambda: _link(link, own)),
    ]


def running_program() -> Path | None:
    """The program that this process runs, as a path to start it by; None for a checkout without one."""
    if is_frozen():
        return Path(sys.executable)
    beside = Path(sys.prefix) / "bin" / "llmgw"
    if not beside.exists() or "site-packages" not in Path(__file__).parts:
        return None
    return beside


def refuse_out_of_reach(own: Path) -> None:
    """Raise ControlHostError when the server's user, in its unit, does not get to a program."""
    remedy = (
        "give the file of a release with --binary, or put the environment where everybody gets to, for example "
        "below /opt (pipx: PIPX_HOME=/opt/pipx)"
    )
    for place in dict.fromkeys([own, Path(os.path.realpath(own))]):
        if any(place.is_relative_to(hidden) for hidden in _HIDDEN):
            raise ControlHostError(
                f"This llmgw lies at {place}, which the units of server and routers do not see; {remedy}."
            )
        for folder in place.parents:
            if folder.exists() and not folder.stat().st_mode & 0o001:
                raise ControlHostError(
                    f"This llmgw lies at {place}, and {folder} lets the server's user not pass; {remedy}."
                )


def _from_release(host: LocalHost, binary: Path) -> list[Action]:
    file = read_name(binary.name)
    try:
        sha256 = digest(binary).hex()
    except OSError as error:
        raise ControlHostError(f"--binary {binary} cannot be read: {error.strerror or error}") from None
    folder = f"{VERSIONS}/{file.version}-{sha256[:12]}"
    link, installed = host.path(PROGRAM), host.path(f"{folder}/bin/llmgw")
    if link.exists() and os.path.realpath(link) == os.path.realpath(installed):
        return []
    arguments = [str(binary.resolve()), binary.name, sha256]
    what = f"install llmgw {file.version} from {binary} into {folder} and switch {PROGRAM} to it"
    return [Action(what, lambda: _script(host, arguments, str(binary)))]


def _script(host: LocalHost, arguments: list[str], what: str) -> None:
    root = [] if host.root == Path("/") else [str(host.root)]
    ran = host.run(["sh", "-s", "--", *arguments, *root], script())
    if ran.code != 0:
        raise ControlHostError(f"{what} was not installed: {ran.said}")


def _link(link: Path, own: Path) -> None:
    waiting = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        waiting.unlink(missing_ok=True)
        waiting.symlink_to(own)
        os.replace(waiting, link)
    except OSError as error:
        raise ControlHostError(f"{PROGRAM} cannot be linked to {own}: {error.strerror or error}") from None
