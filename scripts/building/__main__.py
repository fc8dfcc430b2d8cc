"""`scripts/build`: the files of a release, with checksums, bills of materials, and signatures by a key."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from llmgw import __version__
from llmgw.config.errors import SentenceError
from llmgw.release.files import Kind, name_of
from scripts.building.environment import make_environment
from scripts.building.frozen import build_frozen
from scripts.building.hatch_build import commit_of
from scripts.building.problem import BuildError, run_logged
from scripts.building.record import Made
from scripts.building.sums import SUMS, read_private_key, sign_files, write_sums
from scripts.building.wheels import build_wheels

ROOT = Path(__file__).parents[2]
KINDS = ("sdist", "wheel", "wheels", "folder", "single")


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/build", description=__doc__)
    parser.add_argument("--only", default=",".join(KINDS), help=f"kinds, of {','.join(KINDS)} (default: all)")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="folder that is made anew (default: dist)"
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build", help="scratch, kept for speed (default: build)"
    )
    parser.add_argument(
        "--sign", type=Path, metavar="KEYFILE", help="sign with this key (scripts/sign makes one)"
    )
    asked = parser.parse_args(arguments)
    kinds = set(asked.only.split(","))
    if unknown := kinds - set(KINDS):
        parser.error(f"there is no kind {', '.join(sorted(unknown))}; the kinds are {', '.join(KINDS)}")
    try:
        key = None if asked.sign is None else read_private_key(asked.sign)
        made = _begin(asked.out.absolute(), asked.work.absolute())
        build(made, kinds)
        write_sums(made.out)
        if key is not None:
            sign_files(key, made.out)
    except SentenceError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for path in sorted(made.out.iterdir()):
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path}")
    return 0


def _begin(out: Path, work: Path) -> Made:
    commit = commit_of(ROOT) or "unknown"
    made_at = float(os.environ.get("SOURCE_DATE_EPOCH") or _commit_time() or time.time())
    # Everything that packs files goes by it: the same commit makes the same wheel.
    os.environ["SOURCE_DATE_EPOCH"] = str(int(made_at))
    empty_of_releases(out)
    return Made(ROOT, out, work, __version__, commit, made_at)


def empty_of_releases(out: Path) -> None:
    """Make a folder, and remove from it the release that it holds. Raises BuildError where anything else lies."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = sorted(out.iterdir())
    except OSError as error:
        raise BuildError(f"{out} cannot be used for a release ({error.strerror}): name another folder.") from None
    others = [path for path in held if not _is_of_a_release(path)]
    if others:
        raise BuildError(
            f"{out} holds other things than a release, such as {others[0].name}, and would be emptied: name "
            "another folder."
        )
    for path in held:
        path.unlink()


def _is_of_a_release(path: Path) -> bool:
    return path.is_file() and (path.name == SUMS or path.name.startswith("llmgw-"))


def _commit_time() -> str:
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def build(made: Made, kinds: set[str]) -> None:
    """Put the files of these kinds into `made.out`. Raises BuildError."""
    started = time.monotonic()

    def say(step: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {step} ...", file=sys.stderr, flush=True)

    say("the source distribution, and from it the wheel")
    packages = made.work / "packages"
    shutil.rmtree(packages, ignore_errors=True)
    # With the build backend of this environment: the same on a machine that reaches no package index.
    run_logged(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(packages), str(made.root)],
        made.work / "packages.log",
        "the wheel could not be built",
    )
    wheel = packages / name_of(Kind.WHEEL, made.version)
    if "wheel" in kinds:
        shutil.copyfile(wheel, made.out / wheel.name)
    if "sdist" in kinds:
        name = f"llmgw-{made.version}.tar.gz"
        shutil.copyfile(packages / name, made.out / name)
    if not kinds & {"wheels", "folder", "single"}:
        return
    say("an environment with all that llmgw depends on, and PyInstaller")
    environment = make_environment(made.root, made.work, wheel)
    if "wheels" in kinds:
        say("the wheels")
        build_wheels(made, environment, wheel)
    if kinds & {"folder", "single"}:
        say("the folder with its own Python, and the single file")
        build_frozen(made, environment, folder="folder" in kinds, single="single" in kinds)
    say("done")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
