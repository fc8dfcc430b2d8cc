"""The licences of everything inside a file of a release: their texts in a folder, and a list of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from importlib.metadata import Distribution
from pathlib import Path

from building.parts import Part

_TEXT = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|AUTHORS|COPYRIGHT)", re.IGNORECASE)
_LENGTH_MAX = 80


def package_part(distribution: Distribution) -> Part:
    """A Python package, with the texts that lie in its metadata (PEP 639, and the habits before it)."""
    texts = [
        Path(str(file.locate()))
        for file in distribution.files or ()
        if ".dist-info/" in str(file) and (_TEXT.match(file.name) or "/licenses/" in str(file))
    ]
    needs = tuple(
        found[0]
        for one in distribution.requires or ()
        if "extra ==" not in one and (found := re.match(r"[A-Za-z0-9._-]+", one))
    )
    return Part(
        "pypi",
        distribution.metadata["Name"],
        distribution.version,
        licence_of(distribution),
        tuple(text for text in texts if text.is_file()),
        needs,
    )


def licence_of(distribution: Distribution) -> str:
    """What the metadata calls the licence: an SPDX expression, or else its own words."""
    metadata = distribution.metadata
    stated = next((metadata[key] for key in ("License-Expression", "License") if key in metadata), "")
    if stated.strip() and len(stated) <= _LENGTH_MAX and "\n" not in stated.strip():
        return str(stated.strip())
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier") or ()
        if line.startswith("License :: ") and line != "License :: OSI Approved"
    ]
    return ", ".join(classifiers) or "not stated"


def write_licences(folder: Path, parts: Sequence[Part]) -> None:
    """Make `folder` with INDEX (a line each) and the texts, `NAME-VERSION/FILE`."""
    folder.mkdir()
    lines = []
    for part in sorted(parts, key=lambda part: part.name.lower()):
        lines.append(f"{part.name} {part.version}: {part.licence}")
        if part.files:
            place = folder / re.sub(r"[^A-Za-z0-9._+-]", "_", f"{part.name}-{part.version}")
            place.mkdir(exist_ok=True)
            for text in part.files:
                shutil.copyfile(text, place / text.name)
    (folder / "INDEX").write_text("\n".join(lines) + "\n")
