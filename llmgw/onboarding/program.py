"""Which file of a release a node gets: the one that was named, else this very program in its own kind."""

from __future__ import annotations

import gzip
import platform
import re
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from llmgw import __version__
from llmgw.config.own_program import is_frozen
from llmgw.onboarding.errors import OnboardError
from llmgw.onboarding.facts import NodeFacts
from llmgw.onboarding.venv_wheels import installation, pack
from llmgw.release.files import Kind, ReleaseFile, name_of, read_name
from llmgw.release.signature import digest, read_public_key, verify

_ABOVE_MAX = 4
_FREE_FACTOR = 5
"""A packed file, what it unpacks to, and a spare: seen with the folder that holds its own Python."""


@dataclass(frozen=True, slots=True)
class Program:
    """A file to install. `sha256` is in hex."""

    file: ReleaseFile
    path: Path
    sha256: str

    @property
    def folder(self) -> str:
        """What its folder below /opt/llmgw is called."""
        return f"{self.file.version}-{self.sha256[:12]}"


def named(path: Path, release_key: bytes | None) -> Program:
    """A file of a release. With a key of releases, and a signature beside the file, that is verified first.

    Raises OnboardError, and ReleaseError for a name or a signature that is none.
    """
    file = read_name(path.name)
    try:
        sha256 = digest(path)
        signature = path.with_name(path.name + ".sig")
        if release_key is not None and signature.exists():
            verify(
                read_public_key(release_key, "the key of releases"),
                path.name,
                sha256,
                signature.read_text()[:4096],
            )
    except OSError as error:
        raise OnboardError(f"--binary {path} cannot be read: {error.strerror or error}.") from None
    return Program(file, path, sha256.hex())


def own(folder: Path) -> Program:
    """This program, packed into `folder`: a frozen one as the folder it is, an installation as its wheels.

    Raises OnboardError for a working tree, which no node should run.
    """
    machine = platform.machine()
    path = _frozen(folder, machine) if is_frozen() else pack(folder, _own_python(), machine)
    return Program(read_name(path.name), path, digest(path).hex())


def what_own_would_be() -> ReleaseFile:
    """What `own` makes, without making it. Raises OnboardError where it could not."""
    machine = platform.machine()
    if is_frozen():
        _own_folder()
        return read_name(name_of(Kind.FOLDER, __version__, machine))
    installation()
    return read_name(name_of(Kind.WHEELS, __version__, machine, _own_python()))


def on_node(facts: NodeFacts) -> str | None:
    """The folder (`1.2.3-<12 digits>`) of the program that the node's symlink leads to, and that is there."""
    if facts.program is None or not facts.program.endswith("/bin/llmgw"):
        return None
    folder = facts.program.removesuffix("/bin/llmgw").rpartition("/")[2]
    return folder if folder in facts.versions else None


def keeps_its_own(facts: NodeFacts) -> str | None:
    """The version on the node when it is this one or a newer: without --binary that stays. Else None."""
    folder = on_node(facts)
    if folder is None:
        return None
    version = folder.rpartition("-")[0]
    return version if version == __version__ or _release(version) > _release(__version__) else None


def check_fits(file: ReleaseFile, size_bytes: int, facts: NodeFacts, node_id: str) -> None:
    """Raise OnboardError when the node cannot run the file, with the name of one that it can."""
    single = name_of(Kind.SINGLE, file.version, facts.machine)
    if file.machine is not None and file.machine != facts.machine:
        other = name_of(file.kind, file.version, facts.machine, file.python or "")
        raise OnboardError(
            f"{node_id} is {facts.machine} and {file.name} is for {file.machine}: name the release's file for "
            f"it, --binary {other}"
        )
    if file.kind in (Kind.WHEEL, Kind.WHEELS):
        tags = [one.tag for one in facts.interpreters if _python_fits(one.tag, file)]
        wanted = f"Python 3.{file.python[3:]}" if file.python else "Python 3.11 or newer"
        if not tags:
            has = ", ".join(f"3.{one.tag[3:]}" for one in facts.interpreters) or "none"
            raise OnboardError(
                f"{node_id} has no {wanted} (it has {has}), which {file.name} needs: install it there, or name "
                f"the release's file that needs no Python, --binary {single}"
            )
        if not any(one.makes_environments for one in facts.interpreters if one.tag in tags):
            package = f"python3.{tags[0][3:]}-venv"
            raise OnboardError(
                f"The Python of {node_id} cannot make virtual environments: apt-get install {package} there "
                f"(python3-venv), or name the release's file that needs no Python, --binary {single}"
            )
    elif not facts.libc.startswith("glibc"):
        raise OnboardError(f"{node_id} has no glibc, which {file.name} needs; use a distribution that has it.")
    for place, factor in (("/opt", _FREE_FACTOR), ("/var/tmp", 1)):
        free_kb, needed_kb = facts.free_kb.get(place), size_bytes * factor // 1024
        if free_kb is not None and free_kb < needed_kb:
            raise OnboardError(
                f"{node_id} has {free_kb // 1024} MiB free on the disk of {place}, and the program needs about "
                f"{needed_kb // 1024 + 1}. Make room there (df -h, journalctl --vacuum-size=200M), then run "
                "this again."
            )


def _python_fits(tag: str, file: ReleaseFile) -> bool:
    return tag == file.python if file.python else int(tag[3:]) >= 11


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version: 1.10.0rc1 → (1, 10, 0)."""
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _own_python() -> str:
    return f"cp{sys.version_info[0]}{sys.version_info[1]}"


def _own_folder() -> Path:
    """The folder that this program was unpacked to: `bin/llmgw` lies in it. Raises OnboardError."""
    for above in list(Path(sys.executable).resolve().parents)[:_ABOVE_MAX]:
        if (above / "bin" / "llmgw").exists() and above not in (Path("/"), Path("/usr"), Path("/usr/local")):
            return above
    raise OnboardError(
        f"The folder that {sys.executable} was unpacked to is not a release's: name a file of a release with "
        "--binary."
    )


def _frozen(folder: Path, machine: str) -> Path:
    root = _own_folder()
    path = folder / name_of(Kind.FOLDER, __version__, machine)
    top = path.name.removesuffix(".tar.gz")

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = 0
        return entry

    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        tar.add(root, arcname=top, filter=plain)
    return path
