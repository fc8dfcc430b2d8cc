"""The folder that holds its own Python, made by PyInstaller, and with it the single file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from building.bom import bill_of_materials
from building.environment import Environment
from building.glibc import files_below, needed_glibc
from building.licences import package_part, write_licences
from building.parts import bootloader_part, library_parts, python_part
from building.problem import run_logged
from building.record import Made
from building.single import write_single
from building.tarballs import pack
from llmgw.release.files import Kind, name_of

SPEC = Path(__file__).with_name("llmgw.spec")


def build_frozen(made: Made, environment: Environment, *, folder: bool, single: bool) -> list[Path]:
    """Build the folder's tarball and the single file, those that are wanted, and their bill of materials.

    Raises BuildError.
    """
    place = made.work / "frozen"
    shutil.rmtree(place, ignore_errors=True)
    # What is frozen is the installed wheel: nothing of this checkout may be found.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run_logged(
        [
            *(str(environment.python), "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN"),
            *("--distpath", str(place), "--workpath", str(made.work / "pyinstaller"), str(SPEC)),
        ],
        made.work / "pyinstaller.log",
        "PyInstaller could not make the folder",
        env={**env, "LLMGW_BUILD_DISTRIBUTIONS": " ".join(environment.names)},
    )
    parts = [
        *(package_part(one) for one in environment.released()),
        python_part(),
        bootloader_part(environment),
        *library_parts(made.work / "pyinstaller" / "llmgw" / "COLLECT-00.toc", environment),
    ]
    write_licences(place / "LICENSES", parts)
    glibc = needed_glibc(files_below(place))
    (place / "BUILD").write_text(made.record(glibc))
    product = name_of(Kind.SINGLE, made.version, made.machine)
    bom = made.out / f"{product}.cdx.json"
    bom.write_text(bill_of_materials(product, made.version, parts, made.made_at))
    tarball = (made.out if folder else made.work) / name_of(Kind.FOLDER, made.version, made.machine)
    pack(place, tarball, product, made.made_at)
    files = [bom]
    if folder:
        files.append(tarball)
    if single:
        write_single(tarball, made.out / product, version=made.version, machine=made.machine, glibc=glibc)
        files.append(made.out / product)
    return files
