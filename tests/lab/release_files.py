"""Files of releases of this checkout, made in seconds and without an index: from the wheel of its code, and from
what this interpreter has installed of what it depends on."""

from __future__ import annotations

import compileall
import importlib.metadata as metadata
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from llmgw import __version__
from llmgw.onboarding.venv_wheels import _with_dependencies, wheel_of
from llmgw.release.files import Kind, name_of
from llmgw.release.signature import sign

CHECKOUT = Path(__file__).parent.parent.parent
MACHINE = platform.machine()
PYTHON = f"cp{sys.version_info[0]}{sys.version_info[1]}"
# Debian's Python runs it, with all else from its own folder. Unpacked in a second, where an environment takes
# ten.
_PROGRAM = """#!/usr/bin/python3
import os, sys
library = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "lib")
sys.path.insert(0, library)
os.environ["PYTHONPATH"] = library
sys.argv[0] = "llmgw"
from llmgw.__main__ import main
main()
"""


class ReleaseFiles:
    """Each is made when it is first asked for, or before, in the background (`begin`)."""

    def __init__(self, place: Path, newer: str) -> None:
        """`newer`: the version of the file that agents are upgraded to."""
        self._place = place
        self._newer = newer
        self._key = Ed25519PrivateKey.generate()
        self._making: dict[Callable[[], Path], Future[Path]] = {}
        # One: they are made of each other.
        self._pool = ThreadPoolExecutor(max_workers=1)
        place.mkdir(parents=True, exist_ok=True)

    def begin(self) -> None:
        """Make all of them, in the order in which they are needed, while something else goes on."""
        for make in (self._pack_wheels, self._pack_folder, self._pack_newer):
            self._made(make)

    @property
    def public_key(self) -> bytes:
        """What the files are verified with."""
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @property
    def wheels(self) -> Path:
        """What a virtual environment is installed from."""
        return self._made(self._pack_wheels).result()

    @property
    def folder(self) -> Path:
        """With everything but the interpreter."""
        return self._made(self._pack_folder).result()

    @property
    def newer(self) -> Path:
        """The folder's file under another version."""
        return self._made(self._pack_newer).result()

    def _made(self, make: Callable[[], Path]) -> Future[Path]:
        if make not in self._making:
            self._making[make] = self._pool.submit(make)
        return self._making[make]

    @cached_property
    def _wheel(self) -> Path:
        return self._build_wheel()

    @cached_property
    def _needed(self) -> list[metadata.Distribution]:
        return list(self._dependencies())

    @cached_property
    def _library(self) -> Path:
        """What of the folder is the same in every version, but for one line."""
        library = self._place / "library"
        self._fill(library)
        return library

    def _build_wheel(self) -> Path:
        built = self._place / "wheel"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "build", "--no-isolation", "--wheel"),
                "--outdir",
                str(built),
                str(CHECKOUT),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        [wheel] = built.glob("*.whl")
        return wheel

    def _dependencies(self) -> Iterator[metadata.Distribution]:
        unpacked = self._place / "metadata"
        with zipfile.ZipFile(self._wheel) as archive:
            [name] = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
            archive.extract(name, unpacked)
        own = metadata.Distribution.at(unpacked / name.partition("/")[0])
        return (one for one in _with_dependencies(own) if one is not own)

    def _pack_wheels(self) -> Path:
        path = self._place / name_of(Kind.WHEELS, __version__, MACHINE, PYTHON)
        content = self._place / path.name.removesuffix(".tar.gz")
        content.mkdir()
        shutil.copyfile(self._wheel, content / self._wheel.name)
        for one in self._needed:
            name, data = wheel_of(one)
            (content / name).write_bytes(data)
        return self._pack(path, content)

    def _pack_folder(self) -> Path:
        return self._pack_version(__version__)

    def _pack_newer(self) -> Path:
        return self._pack_version(self._newer)

    def _pack_version(self, version: str) -> Path:
        path = self._place / name_of(Kind.FOLDER, version, MACHINE)
        content = self._place / path.name.removesuffix(".tar.gz")
        shutil.copytree(self._library, content / "lib", copy_function=os.link)
        if version != __version__:
            about = content / "lib" / "llmgw" / "__init__.py"
            text = about.read_text().replace(f'"{__version__}"', f'"{version}"')
            about.unlink()
            about.write_text(text)
        (content / "bin").mkdir()
        (content / "bin" / "llmgw").write_text(_PROGRAM)
        (content / "bin" / "llmgw").chmod(0o755)
        (content / "BUILD").write_text(f"version: {version}\nmachine: {MACHINE}\nglibc: 2.17\n")
        return self._pack(path, content)

    def _fill(self, library: Path) -> None:
        with zipfile.ZipFile(self._wheel) as archive:
            archive.extractall(library)
        for one in self._needed:
            for listed in one.files or ():
                source = Path(str(one.locate_file(listed)))
                if ".." not in listed.parts and source.is_file():
                    target = library / listed
                    target.parent.mkdir(parents=True, exist_ok=True)
                    # With the times of what was compiled, so that it need not be again.
                    shutil.copy2(source, target)
        compileall.compile_dir(library, quiet=2, workers=0)

    def _pack(self, path: Path, content: Path) -> Path:
        with tarfile.open(path, "w:gz", compresslevel=1) as tarball:
            tarball.add(content, arcname=path.name.removesuffix(".tar.gz"))
        path.with_name(f"{path.name}.sig").write_text(sign(self._key, path))
        return path
