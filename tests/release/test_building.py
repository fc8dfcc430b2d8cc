"""The steps of scripts/build, on small things: what takes minutes is in test_build.py."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tarfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from llmgw.release.files import Kind, name_of
from llmgw.release.install import script
from scripts.building.__main__ import empty_of_releases
from scripts.building.bom import bill_of_materials
from scripts.building.glibc import needed_glibc
from scripts.building.hatch_build import commit_of
from scripts.building.licences import package_part, write_licences
from scripts.building.parts import Part
from scripts.building.problem import BuildError
from scripts.building.sign import main as sign
from scripts.building.single import write_single
from scripts.building.tarballs import pack
from tests.release.made_up_release import MACHINE, folder_tarball, sha256

ECHO = '#!/bin/sh\n[ "$1" != --version ] || exec echo llmgw {version}\necho "$0 runs $*"\n'


def make_single(folder: Path, *, glibc: str = "2.17", machine: str = MACHINE) -> Path:
    """The single file of a made-up folder whose program says where it lies and what it was given."""
    path = folder / name_of(Kind.SINGLE, "1.2.3", machine)
    tarball = folder_tarball(folder, program=ECHO, glibc=glibc, machine=machine)
    write_single(tarball, path, version="1.2.3", machine=machine, glibc=glibc)
    return path


def run(*argv: str | Path, **env: str | Path) -> subprocess.CompletedProcess[str]:
    given = {"PATH": os.environ["PATH"], **{name: str(value) for name, value in env.items()}}
    return subprocess.run(
        list(map(str, argv)), capture_output=True, text=True, timeout=150, check=False, env=given
    )


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_the_single_file_runs_from_a_folder_that_stays(tmp_path: Path) -> None:
    file, place = make_single(tmp_path), tmp_path / "unpacked"
    done = run(file, "agent", "a b", LLMGW_UNPACKED=place)
    assert done.returncode == 0, done.stderr
    (folder,) = place.iterdir()
    assert done.stdout == f"{folder}/bin/llmgw runs agent a b\n"
    assert place.stat().st_mode & 0o777 == 0o700
    # The second time nothing is unpacked: it starts from what is there.
    with file.open("r+b") as broken:
        broken.truncate(file.stat().st_size - 20)
    assert run(file, "x", LLMGW_UNPACKED=place).stdout == f"{folder}/bin/llmgw runs x\n"


def test_the_single_file_is_unpacked_in_the_users_own_cache(tmp_path: Path) -> None:
    file = make_single(tmp_path)
    # As any user but root, whose HOME may be somebody else's.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "bin/id").chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    assert run(file, PATH=path, HOME=tmp_path / "home").returncode == 0
    assert [one.name[:6] for one in (tmp_path / "home/.cache/llmgw").iterdir()] == ["1.2.3-"]
    assert_refused(run(file, PATH=path), "LLMGW_UNPACKED")


def test_a_single_file_that_is_cut_off_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    file, place = make_single(tmp_path), tmp_path / "unpacked"
    with file.open("r+b") as broken:
        broken.truncate(file.stat().st_size - 20)
    assert_refused(run(file, LLMGW_UNPACKED=place), "could not be unpacked")
    assert list(place.iterdir()) == []


def test_the_single_file_says_what_machine_and_glibc_it_needs(tmp_path: Path) -> None:
    place = tmp_path / "unpacked"
    file = make_single(tmp_path, glibc="2.999")
    assert_refused(run(file, LLMGW_UNPACKED=place), "needs glibc 2.999", platform.libc_ver()[1])
    assert_refused(run(file, "--unpack", tmp_path / "there"), "needs glibc 2.999")
    other = "aarch64" if MACHINE == "x86_64" else "x86_64"
    file = make_single(tmp_path, machine=other)
    assert_refused(run(file, LLMGW_UNPACKED=place), f"for Linux {other}", MACHINE)
    assert not place.exists()


def test_a_folder_that_cannot_be_used_has_a_remedy(tmp_path: Path) -> None:
    file = make_single(tmp_path)
    (tmp_path / "file").write_text("")
    assert_refused(run(file, LLMGW_UNPACKED=tmp_path / "file/x"), "cannot be made", "LLMGW_UNPACKED")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("")
    assert_refused(run(file, "--unpack", tmp_path / "full"), "not empty")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_folder_that_others_may_write_to_decides_nothing(tmp_path: Path, mode: int) -> None:
    file, place = make_single(tmp_path), tmp_path / "unpacked"
    assert run(file, LLMGW_UNPACKED=place).returncode == 0
    (folder,) = place.iterdir()
    for open_to_others in (folder, place):
        before = open_to_others.stat().st_mode
        open_to_others.chmod(mode)
        assert_refused(run(file, LLMGW_UNPACKED=place), str(open_to_others), "chmod go-w")
        open_to_others.chmod(before)
    assert run(file, LLMGW_UNPACKED=place).returncode == 0


def test_what_a_killed_run_or_a_tidy_up_left_of_it_goes(tmp_path: Path) -> None:
    file, place = make_single(tmp_path), tmp_path / "unpacked"
    assert run(file, LLMGW_UNPACKED=place).returncode == 0
    (folder,) = place.iterdir()
    (folder / "bin/llmgw").unlink()
    with subprocess.Popen(["true"]) as ended:
        pass
    (place / f".new-{ended.pid}").mkdir()
    assert run(file, "x", LLMGW_UNPACKED=place).stdout == f"{folder}/bin/llmgw runs x\n"
    assert list(place.iterdir()) == [folder]


def test_a_folder_where_nothing_can_be_executed_has_a_remedy(tmp_path: Path) -> None:
    file, place = make_single(tmp_path), tmp_path / "unpacked"
    assert run(file, LLMGW_UNPACKED=place).returncode == 0
    (folder,) = place.iterdir()
    (folder / "bin/llmgw").chmod(0o644)  # as everything is where noexec is mounted
    assert_refused(run(file, LLMGW_UNPACKED=place), "noexec", "LLMGW_UNPACKED")


def test_the_single_file_is_installed_without_its_script(tmp_path: Path) -> None:
    file, root = make_single(tmp_path), tmp_path / "root"
    root.mkdir()
    done = subprocess.run(
        ["/bin/sh", "-s", "--", str(file), file.name, sha256(file), str(root)],
        input=script(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "installed 1.2.3\n"), done.stderr
    folder = root / f"opt/llmgw/1.2.3-{sha256(file)[:12]}"
    assert sorted(path.name for path in folder.iterdir()) == ["BUILD", "bin"]
    assert folder.stat().st_mode & 0o777 == 0o755


def test_the_newest_symbol_says_which_glibc_is_needed() -> None:
    elf = b"\x7fELF\0GLIBC_2.4\0GLIBC_2.28\0GLIBC_2.3.4\0"
    assert needed_glibc([]) == "2.17"
    assert needed_glibc([elf, b"\x7fELF\0GLIBC_2.30\0"]) == "2.30"
    assert needed_glibc([elf, b"a text on \0GLIBC_2.99\0"]) == "2.28"
    assert needed_glibc([elf + b"GLIBC_ABI_DT_RELR\0"]) == "2.36"


def test_a_program_of_this_machine_needs_no_newer_glibc_than_it_has() -> None:
    content = Path(sys.executable).resolve().read_bytes()
    needed = tuple(map(int, needed_glibc([content]).split(".")))
    assert needed <= tuple(map(int, platform.libc_ver()[1].split(".")))


def test_the_same_folder_is_the_same_tarball(tmp_path: Path) -> None:
    (tmp_path / "in/bin").mkdir(parents=True)
    (tmp_path / "in/bin/x").write_text("x")
    pack(tmp_path / "in", tmp_path / "1.tar.gz", "top", 1e9)
    os.utime(tmp_path / "in/bin/x", (1, 1))
    pack(tmp_path / "in", tmp_path / "2.tar.gz", "top", 1e9)
    assert (tmp_path / "1.tar.gz").read_bytes() == (tmp_path / "2.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "1.tar.gz") as tarball:
        assert [(one.name, one.uname) for one in tarball] == [("top/bin", "root"), ("top/bin/x", "root")]


def test_licences_are_collected_with_an_index(tmp_path: Path) -> None:
    part = package_part(distribution("cryptography"))
    write_licences(tmp_path / "LICENSES", [part, Part("deb", "libssl3", "3.0", "as its own text says")])
    index = (tmp_path / "LICENSES/INDEX").read_text().splitlines()
    assert index == [f"cryptography {part.version}: {part.licence}", "libssl3 3.0: as its own text says"]
    texts = list((tmp_path / f"LICENSES/cryptography-{part.version}").iterdir())
    assert any("Apache" in text.read_text() for text in texts)


def test_a_bill_of_materials_tells_parts_and_what_needs_what() -> None:
    parts = [
        Part("pypi", "llmgw", "1.2.3", "not stated", needs=("PyYAML", "uvloop")),
        Part("pypi", "PyYAML", "6.0", "MIT"),
        Part("pypi", "x", "1", "MIT OR Apache-2.0"),
        Part("deb", "zlib1g", "1:1.2.13", "as its own text says", namespace="debian"),
    ]
    text = bill_of_materials("llmgw-1.2.3-linux-x86_64", "1.2.3", parts, 0.0)
    bom = json.loads(text)
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5")
    assert bom["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"
    assert {one["purl"]: one["licenses"] for one in bom["components"]} == {
        "pkg:deb/debian/zlib1g@1%3A1.2.13": [{"license": {"name": "as its own text says"}}],
        "pkg:pypi/pyyaml@6.0": [{"license": {"id": "MIT"}}],
        "pkg:pypi/x@1": [{"expression": "MIT OR Apache-2.0"}],
    }
    assert bom["dependencies"][0] == {"ref": "pkg:pypi/llmgw@1.2.3", "dependsOn": ["pkg:pypi/pyyaml@6.0"]}
    assert bill_of_materials("llmgw-1.2.3-linux-x86_64", "1.2.3", parts, 0.0) == text


def test_a_key_is_never_replaced_and_never_shared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sign(["new-key", str(tmp_path)]) == 0
    secret = tmp_path / "release-key.pem"
    assert secret.stat().st_mode & 0o777 == 0o600
    before = secret.read_bytes()
    assert sign(["new-key", str(tmp_path)]) == 1
    assert "there already" in capsys.readouterr().err
    assert secret.read_bytes() == before
    secret.chmod(0o644)
    assert sign(["files", str(secret), str(tmp_path)]) == 1
    assert f"chmod 600 {secret}" in capsys.readouterr().err
    assert sign(["files", str(tmp_path / "release.pub"), str(tmp_path)]) == 1
    assert sign(["files", str(tmp_path / "none"), str(tmp_path)]) == 1


def test_checksums_cover_all_but_signatures(tmp_path: Path) -> None:
    folder_tarball(tmp_path)
    (tmp_path / "x.cdx.json").write_text("{}")
    (tmp_path / "x.sig").write_text("")
    for _ in range(2):  # the second time SHA256SUMS itself is there
        assert sign(["sums", str(tmp_path)]) == 0
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=tmp_path, check=True)
        names = [line.split()[1] for line in (tmp_path / "SHA256SUMS").read_text().splitlines()]
        assert names == [name_of(Kind.FOLDER, "1.2.3", MACHINE), "x.cdx.json"]


def test_a_build_names_its_commit_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert commit_of(tmp_path) is None
    git("init", "-q")
    (tmp_path / "llmgw").mkdir()
    (tmp_path / "llmgw/__init__.py").write_text("")
    git("add", "-A")
    git("commit", "-q", "-m", "x")
    commit = git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "notes").write_text("")
    assert commit_of(tmp_path) == commit
    (tmp_path / "llmgw/more.py").write_text("")
    assert commit_of(tmp_path) == f"{commit}, changed"
    # A folder inside of some other checkout is not that one's.
    assert commit_of(tmp_path / "llmgw") is None


def test_a_wrong_wish_builds_nothing(tmp_path: Path) -> None:
    (tmp_path / "photos").write_text("")
    for arguments, words in (
        (["--only", "rpm"], "there is no kind rpm"),
        (["--only", "wheel", "--out", str(tmp_path)], "would be emptied"),
        (["--only", "wheel", "--out", str(tmp_path / "d"), "--sign", "/no/key"], "/no/key cannot be read"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "scripts.building", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert (tmp_path / "photos").exists()


@pytest.mark.parametrize("there", ["release.pub", "release-key.pem"])
def test_a_new_key_comes_whole_or_not_at_all(
    tmp_path: Path, there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / there).write_text("another's\n")
    assert sign(["new-key", str(tmp_path)]) == 1
    assert there in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "another's\n"


def test_signing_nothing_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sign(["new-key", str(tmp_path / "keys")]) == 0
    (tmp_path / "dist").mkdir()
    assert sign(["sums", str(tmp_path / "dist")]) == 1
    (tmp_path / "dist/llmgw-1.2.3.tar.gz").write_text("no file that is installed")
    assert sign(["files", str(tmp_path / "keys/release-key.pem"), str(tmp_path / "dist")]) == 1
    assert "nothing was signed" in capsys.readouterr().err


def test_a_build_removes_nothing_but_a_release(tmp_path: Path) -> None:
    out = tmp_path / "downloads"
    empty_of_releases(out)
    for name in ("llmgw-1.2.3-linux-x86_64", "llmgw-1.2.3-linux-x86_64.sig", "SHA256SUMS"):
        (out / name).write_text("")
    empty_of_releases(out)
    assert list(out.iterdir()) == []
    for name in ("llmgw-1.2.3-linux-x86_64", "thesis.txt"):
        (out / name).write_text("")
    with pytest.raises(BuildError, match=r"such as thesis\.txt"):
        empty_of_releases(out)
    (out / "thesis.txt").unlink()
    (out / "llmgw-main").mkdir()
    with pytest.raises(BuildError, match="such as llmgw-main"):
        empty_of_releases(out)
    assert len(list(out.iterdir())) == 2
