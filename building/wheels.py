"""The wheel with all it depends on, for this Python and machine: what a node without an index installs from."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import Distribution
from pathlib import Path

from building.bom import bill_of_materials
from building.environment import Environment
from building.glibc import files_in_wheels, needed_glibc
from building.licences import package_part, write_licences
from building.problem import run_logged
from building.record import Made
from building.tarballs import pack
from llmgw.release.files import Kind, name_of


def build_wheels(made: Made, environment: Environment, wheel: Path) -> list[Path]:
    """Build the tarball and its bill of materials. Raises BuildError."""
    place = made.work / "wheels"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    released: list[Distribution] = environment.released()
    pinned = [f"{one.metadata['Name']}=={one.version}" for one in released if one.metadata["Name"] != "llmgw"]
    # The same versions as in the frozen folder.
    run_logged(
        [
            *(str(environment.python), "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps"),
            *("--wheel-dir", str(place), *pinned),
        ],
        made.work / "pip-wheel.log",
        "pip could not fetch or build the wheels of what llmgw depends on",
    )
    shutil.copyfile(wheel, place / wheel.name)
    parts = [package_part(one) for one in released]
    write_licences(place / "LICENSES", parts)
    (place / "BUILD").write_text(made.record(needed_glibc(files_in_wheels(place))))
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    tarball = made.out / name_of(Kind.WHEELS, made.version, made.machine, python)
    product = tarball.name.removesuffix(".tar.gz")
    bom = made.out / f"{product}.cdx.json"
    bom.write_text(bill_of_materials(product, made.version, parts, made.made_at))
    pack(place, tarball, product, made.made_at)
    return [bom, tarball]
