"""The running installation as wheels again, for nodes that have no package index.

A wheel is a zip of what its RECORD lists (PyPA's binary distribution format), and pip keeps that RECORD when it
installs; so an installation can be packed again without the wheels that it came from.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.metadata as metadata
import io
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import llmgw
from llmgw.onboarding.errors import OnboardError
from llmgw.release.files import Kind, name_of

_LEFT_BEHIND = {"INSTALLER", "REQUESTED", "RECORD", "RECORD.jws", "RECORD.p7s", "direct_url.json"}
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_USE_BINARY = "Name a file of a release with --binary (scripts/build makes them)."


def pack(folder: Path, python: str, machine: str) -> Path:
    """Write `llmgw-<version>-wheels-<python>-<machine>.tar.gz` of the running installation into `folder`.

    The same installation gives the same bytes. Raises OnboardError when it is a working tree, or a part of it was
    not installed from a wheel.
    """
    own = installation()
    path = folder / name_of(Kind.WHEELS, own.version, machine, python)
    top = path.name.removesuffix(".tar.gz")
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for one in sorted(_with_dependencies(own), key=_name):
            name, content = wheel_of(one)
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return path


def wheel_of(installed: metadata.Distribution) -> tuple[str, bytes]:
    """The name and the content of the wheel that an installed distribution came from, as far as it lies in
    site-packages (headers and manual pages do not). Raises OnboardError."""
    name, record = _name(installed), installed.files
    tags = re.findall(r"^Tag:\s*(\S+)-(\S+)-(\S+)\s*$", installed.read_text("WHEEL") or "", re.MULTILINE)
    if record is None or not tags:
        raise OnboardError(
            f"The Python package {name} here was not installed from a wheel, so it cannot be sent. {_USE_BINARY}"
        )
    info = f"{_escaped(name)}-{installed.version}.dist-info"
    lines: list[str] = []
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for listed in sorted(record, key=str):
            where = listed.as_posix()
            if ".." in listed.parts or where.startswith("/") or listed.suffix == ".pyc" or _own_notes(where):
                continue
            path = Path(str(installed.locate_file(listed)))
            try:
                content, mode = path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644
            except OSError as error:
                raise OnboardError(
                    f"The Python package {name} here is not whole ({where}: {error.strerror}), so it cannot be "
                    f"sent. Install llmgw again. {_USE_BINARY}"
                ) from None
            if where.partition("/")[0].endswith(".dist-info"):
                info = where.partition("/")[0]
            _add(archive, where, content, mode)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            lines.append(f"{_quoted(where)},sha256={digest},{len(content)}")
        lines.append(f"{info}/RECORD,,")
        _add(archive, f"{info}/RECORD", ("\n".join(lines) + "\n").encode(), 0o644)
    tag = "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))
    return f"{_escaped(name)}-{installed.version}-{tag}.whl", buffer.getvalue()


def installation() -> metadata.Distribution:
    """The installed llmgw that runs here. Raises OnboardError for a working tree, which no node should run."""
    try:
        own = metadata.distribution("llmgw")
    except metadata.PackageNotFoundError:
        own = None
    here = Path(llmgw.__file__).resolve()
    installed = own is not None and Path(str(own.locate_file("llmgw/__init__.py"))).resolve() == here
    if own is None or not installed or '"editable": true' in (own.read_text("direct_url.json") or ""):
        raise OnboardError(
            f"This llmgw runs from a working tree ({here.parent.parent}), and what nodes run is a release. "
            f"{_USE_BINARY}"
        )
    return own


def _with_dependencies(own: metadata.Distribution) -> Iterator[metadata.Distribution]:
    """It, and what it needs that is installed: what is not is not for this machine or Python."""
    seen: set[str] = set()
    extras_of: dict[str, set[str]] = {}
    waiting: list[tuple[metadata.Distribution, frozenset[str]]] = [(own, frozenset())]
    while waiting:
        one, extras = waiting.pop()
        name = _escaped(_name(one)).lower()
        known = extras_of.setdefault(name, set())
        if name in seen and extras <= known:
            continue
        known |= extras
        if name not in seen:
            seen.add(name)
            yield one
        for text in one.requires or []:
            wanted, _, marker = text.partition(";")
            asked = set(_EXTRA.findall(marker))
            found = _REQUIREMENT.match(wanted.strip())
            if found is None or (asked and not asked & known):
                continue
            try:
                needed = metadata.distribution(found[1])
            except metadata.PackageNotFoundError:
                continue
            waiting.append(
                (needed, frozenset(part.strip() for part in (found[2] or "").split(",") if part.strip()))
            )


def _name(installed: metadata.Distribution) -> str:
    return str(installed.metadata["Name"])


def _escaped(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name)


def _own_notes(where: str) -> bool:
    """What pip wrote beside the wheel's own files."""
    folder, _, name = where.partition("/")
    return folder.endswith(".dist-info") and name in _LEFT_BEHIND


def _quoted(where: str) -> str:
    return '"' + where.replace('"', '""') + '"' if "," in where or '"' in where else where


def _add(archive: zipfile.ZipFile, name: str, content: bytes, mode: int) -> None:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)
