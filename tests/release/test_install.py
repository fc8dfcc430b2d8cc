"""install.sh, run on real files below a root of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llmgw.release.files import Kind, name_of
from llmgw.release.install import script
from scripts.building.single import write_single
from tests.release.made_up_release import MACHINE, folder_tarball, sha256, wheel, wheels_tarball

Done = subprocess.CompletedProcess[str]


def sh(*arguments: str | Path, path: str | None = None, env: dict[str, str] | None = None) -> Done:
    """The script as onboarding runs it: from standard input."""
    return subprocess.run(
        ["/bin/sh", "-s", "--", *map(str, arguments)],
        input=script(),
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
        env={"PATH": path or os.environ["PATH"], "LC_ALL": "C", **(env or {})},
    )


def install(file: Path, root: Path, *options: str, path: str | None = None) -> Done:
    return sh(*options, file, file.name, sha256(file), root, path=path)


def program(root: Path) -> Path:
    return root / "usr/local/bin/llmgw"


def versions(root: Path) -> list[str]:
    """Everything that lies where versions do, hidden files too."""
    folder = root / "opt/llmgw"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def folder_of(file: Path, root: Path) -> Path:
    version = file.name.split("-")[1]
    return root / "opt/llmgw" / f"{version}-{sha256(file)[:12]}"


def says(root: Path) -> str:
    bare = {"PATH": os.environ["PATH"]}  # without PYTHONPATH, by which an environment would find this checkout
    done = subprocess.run([program(root), "--version"], capture_output=True, text=True, check=True, env=bare)
    return done.stdout.strip()


def assert_refused(done: Done, *words: str) -> None:
    """One sentence on standard error, and the exit code of a failure."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


def test_a_folder_is_unpacked_and_switched_to(tmp_path: Path, root: Path) -> None:
    file = folder_tarball(tmp_path)
    done = install(file, root)
    assert (done.returncode, done.stdout, done.stderr) == (0, "installed 1.2.3\n", "")
    assert says(root) == "llmgw 1.2.3"
    assert program(root).readlink() == folder_of(file, root) / "bin/llmgw"
    assert versions(root) == [folder_of(file, root).name]
    # Other users' services and engines run from it.
    assert folder_of(file, root).stat().st_mode & 0o777 == 0o755


def test_a_second_run_changes_nothing(tmp_path: Path, root: Path) -> None:
    file = folder_tarball(tmp_path)
    install(file, root)
    before = folder_of(file, root).stat().st_ino
    done = install(file, root)
    assert (done.returncode, done.stdout) == (0, "unchanged 1.2.3\n")
    assert folder_of(file, root).stat().st_ino == before


def test_the_wheels_need_no_index(tmp_path: Path, root: Path) -> None:
    file = wheels_tarball(tmp_path)
    done = install(file, root)
    assert (done.returncode, done.stdout, done.stderr) == (0, "installed 1.2.3\n", "")
    assert says(root) == "llmgw 1.2.3"
    # The environment was made elsewhere and moved; nothing in it may name the place where it was made.
    text = "".join(
        path.read_text(errors="replace")
        for path in [*(folder_of(file, root) / "bin").iterdir(), folder_of(file, root) / "pyvenv.cfg"]
        if not path.is_symlink()
    )
    assert ".new-" not in text
    assert not (folder_of(file, root) / "wheels").exists()


def test_a_wheel_is_installed_under_its_release_name(tmp_path: Path, root: Path) -> None:
    file = wheel(tmp_path)
    uploaded = tmp_path / "upload.bin"
    file.rename(uploaded)
    done = sh(uploaded, file.name, sha256(uploaded), root)
    assert (done.returncode, done.stdout, done.stderr) == (0, "installed 1.2.3\n", "")
    assert says(root) == "llmgw 1.2.3"


def test_preparing_switches_nothing_and_switching_installs_nothing(tmp_path: Path, root: Path) -> None:
    old, new = folder_tarball(tmp_path), folder_tarball(tmp_path, "1.3.0")
    install(old, root)
    done = install(new, root, "--prepare")
    assert (done.returncode, done.stdout) == (0, f"prepared {folder_of(new, root)}\n")
    assert says(root) == "llmgw 1.2.3"
    done = sh("--switch", folder_of(new, root), root)
    assert (done.returncode, done.stdout) == (0, "installed 1.3.0\n")
    assert says(root) == "llmgw 1.3.0"
    done = sh("--switch", folder_of(new, root), root)
    assert (done.returncode, done.stdout) == (0, "unchanged 1.3.0\n")
    # And back.
    assert sh("--switch", folder_of(old, root), root).returncode == 0
    assert says(root) == "llmgw 1.2.3"


def test_the_version_before_is_kept_and_older_ones_go(tmp_path: Path, root: Path) -> None:
    files = [folder_tarball(tmp_path, version) for version in ("1.0.0", "1.1.0", "1.2.0")]
    (root / "opt/llmgw/models").mkdir(parents=True)
    for file in files:
        assert install(file, root).returncode == 0
    assert versions(root) == [*sorted(folder_of(file, root).name for file in files[1:]), "models"]


def test_a_version_that_still_runs_is_not_removed(tmp_path: Path, root: Path) -> None:
    lasting = '#!/bin/sh\n[ "$1" = --version ] || exec sleep 60\necho llmgw {version}\n'
    files = [folder_tarball(tmp_path, version) for version in ("1.1.0", "1.2.0")]
    sleep = shutil.which("sleep")
    assert sleep is not None
    first = folder_tarball(tmp_path, "1.0.0", program=lasting, files={"bin/engine": Path(sleep).read_bytes()})
    install(first, root)
    engine = folder_of(first, root) / "bin/engine"
    engine.chmod(0o755)
    with subprocess.Popen([engine, "60"]) as running:
        try:
            for file in files:
                assert install(file, root).returncode == 0
            assert folder_of(first, root).exists()
        finally:
            running.kill()
    assert install(folder_tarball(tmp_path, "1.3.0"), root).returncode == 0
    assert not folder_of(first, root).exists()


def test_a_file_whose_content_differs_is_refused(tmp_path: Path, root: Path) -> None:
    file = folder_tarball(tmp_path)
    done = sh(file, file.name, "0" * 64, root)
    assert_refused(done, file.name, "SHA-256", "Send it again")
    assert versions(root) == []


@pytest.mark.parametrize(
    "name",
    [
        *("llmgw", "llmgw-1.2.3.tar.gz", "llmgw-../../x-linux-x86_64", "x-1-linux-x86_64"),
        *("llmgw-..-linux-x86_64.tar.gz", "llmgw-1.2.3-linux-.tar.gz", "llmgw-1.2.3-linux-"),
        *(
            "llmgw-1.2.3-wheels-cp3-x86_64.tar.gz",
            "llmgw-1.2.3-wheels-cp311-.tar.gz",
            "llmgw-1.2.3\n-linux-x86_64",
        ),
    ],
)
def test_a_name_that_no_release_has_is_refused(tmp_path: Path, root: Path, name: str) -> None:
    file = folder_tarball(tmp_path)
    done = sh(file, name, sha256(file), root)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{name} is not the name of a file of a release" in done.stderr
    assert versions(root) == []


def test_another_machine_is_named(tmp_path: Path, root: Path) -> None:
    other = "aarch64" if MACHINE == "x86_64" else "x86_64"
    file = folder_tarball(tmp_path, machine=other)
    assert_refused(install(file, root), other, MACHINE)
    assert versions(root) == []


def test_another_python_is_named(tmp_path: Path, root: Path) -> None:
    file = wheels_tarball(tmp_path, python="cp399")
    done = install(file, root)
    assert_refused(done, "Python 3.99", "this machine has Python 3.", name_of(Kind.SINGLE, "1.2.3", MACHINE))
    assert versions(root) == []


def test_a_python_without_venv_is_told_what_to_install(tmp_path: Path, root: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    python = shutil.which("python3") or "/usr/bin/python3"
    text = f'#!/bin/sh\ncase "$*" in *ensurepip*|*venv*) exit 1 ;; esac\nexec {python} "$@"\n'
    file = wheels_tarball(tmp_path)
    minor = file.name.split("-cp3")[1].split("-")[0]
    for name in ("python3", f"python3.{minor}"):
        (bin_ / name).write_text(text)
        (bin_ / name).chmod(0o755)
    done = install(file, root, path=f"{bin_}:{os.environ['PATH']}")
    assert_refused(done, f"apt-get install python3.{minor}-venv", "single file")


def test_a_glibc_that_is_too_old_is_named_before_anything_runs(tmp_path: Path, root: Path) -> None:
    proof = tmp_path / "ran"
    file = folder_tarball(tmp_path, glibc="2.999", program=f"#!/bin/sh\ntouch {proof}\necho llmgw 1.2.3\n")
    assert_refused(install(file, root), "glibc 2.999", "this machine has 2.")
    assert not proof.exists()
    assert versions(root) == []


def test_a_program_that_says_another_version_is_not_switched_to(tmp_path: Path, root: Path) -> None:
    install(folder_tarball(tmp_path), root)
    wrong = folder_tarball(tmp_path, "1.3.0", program="#!/bin/sh\necho llmgw 9.9.9\n")
    assert_refused(install(wrong, root), "did not say llmgw 1.3.0", "9.9.9")
    assert says(root) == "llmgw 1.2.3"
    assert not folder_of(wrong, root).exists()


def test_a_broken_installation_is_mended(tmp_path: Path, root: Path) -> None:
    file = folder_tarball(tmp_path)
    install(file, root)
    (folder_of(file, root) / "bin/llmgw").write_text("#!/bin/sh\nexit 3\n")
    done = install(file, root)
    assert (done.returncode, done.stdout) == (0, "installed 1.2.3\n")
    assert says(root) == "llmgw 1.2.3"
    assert versions(root) == [folder_of(file, root).name]


@pytest.mark.parametrize("kind", [Kind.FOLDER, Kind.SINGLE])
def test_a_full_disk_is_called_that_and_leaves_nothing(tmp_path: Path, root: Path, kind: Kind) -> None:
    file = folder_tarball(tmp_path, files={"big": os.urandom(400_000)})
    if kind is Kind.SINGLE:
        tarball, file = file, tmp_path / name_of(kind, "1.2.3", MACHINE)
        write_single(tarball, file, version="1.2.3", machine=MACHINE, glibc="2.17")
    command = f"mount -t tmpfs -o size=128k none {root} && sh -s -- {file} {file.name} {sha256(file)} {root}"
    command += f"; code=$?; ls -A {root}/opt/llmgw; exit $code"
    assert_refused(in_a_mount_namespace(command), "full", "make room")


def test_an_interrupted_run_leaves_nothing_half_and_the_next_one_completes(tmp_path: Path, root: Path) -> None:
    slow = tmp_path / "bin"
    slow.mkdir()
    started = tmp_path / "started"
    tar = shutil.which("tar")
    (slow / "tar").write_text(f'#!/bin/sh\n{tar} "$@"\ntouch {started}\nexec sleep 60\n')
    (slow / "tar").chmod(0o755)
    file = folder_tarball(tmp_path)
    for sent in (signal.SIGTERM, signal.SIGKILL):
        running = subprocess.Popen(
            ["/bin/sh", "-s", "--", str(file), file.name, sha256(file), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": f"{slow}:{os.environ['PATH']}"},
            start_new_session=True,
        )
        assert running.stdin is not None
        running.stdin.write(script().encode())
        running.stdin.close()
        deadline = time.monotonic() + 20
        while not started.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        started.unlink()
        os.killpg(running.pid, sent)
        running.wait(20)
        assert not folder_of(file, root).exists()
        assert not program(root).is_symlink()
    assert install(file, root).stdout == "installed 1.2.3\n"
    assert versions(root) == [folder_of(file, root).name]


def test_a_run_that_is_ended_right_after_the_exchange_leaves_what_it_switched_to(
    tmp_path: Path, root: Path
) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    text = f'#!/bin/sh\n{shutil.which("mv")} "$@"\ncase "$3" in */bin/llmgw) kill -TERM $PPID ;; esac\n'
    (bin_ / "mv").write_text(text)
    (bin_ / "mv").chmod(0o755)
    install(folder_tarball(tmp_path), root)
    done = install(folder_tarball(tmp_path, "1.3.0"), root, path=f"{bin_}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert says(root) == "llmgw 1.3.0"


def test_half_a_script_does_nothing(tmp_path: Path, root: Path) -> None:
    file = folder_tarball(tmp_path)
    text = script()
    for part in (0.3, 0.6, 0.9, 0.99):
        subprocess.run(
            ["/bin/sh", "-s", "--", str(file), file.name, sha256(file), str(root)],
            input=text[: int(len(text) * part)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert versions(root) == []


def test_a_version_that_still_runs_is_known_below_a_symlink(tmp_path: Path, root: Path) -> None:
    (tmp_path / "disk").mkdir()
    (root / "opt").symlink_to(tmp_path / "disk")
    sleep = shutil.which("sleep")
    assert sleep is not None
    first = folder_tarball(tmp_path, "1.0.0", files={"bin/engine": Path(sleep).read_bytes()})
    install(first, root)
    engine = folder_of(first, root) / "bin/engine"
    engine.chmod(0o755)
    # As it is found by the symlink: nothing on its command line says where it lies.
    with subprocess.Popen(["llmgw", "60"], executable=engine) as running:
        try:
            for version in ("1.1.0", "1.2.0"):
                assert install(folder_tarball(tmp_path, version), root).returncode == 0
            assert folder_of(first, root).exists()
        finally:
            running.kill()


def test_what_the_shell_points_python_at_is_no_part_of_an_environment(tmp_path: Path, root: Path) -> None:
    file, elsewhere = wheels_tarball(tmp_path), tmp_path / "elsewhere"
    with zipfile.ZipFile(wheel(tmp_path)) as archive:
        archive.extractall(elsewhere)
    config = tmp_path / "pip.conf"
    config.write_text("[install]\nno-binary = :all:\n")
    odd = {"PYTHONPATH": str(elsewhere), "PIP_TARGET": str(elsewhere), "PIP_CONFIG_FILE": str(config)}
    done = sh(file, file.name, sha256(file), root, env=odd)
    assert (done.returncode, done.stdout, done.stderr) == (0, "installed 1.2.3\n", "")
    assert says(root) == "llmgw 1.2.3"


def test_nothing_in_a_file_gets_more_rights_than_a_program_needs(tmp_path: Path, root: Path) -> None:
    file = folder_tarball(tmp_path, modes={"bin/helper": 0o6777})
    install(file, root)
    assert (folder_of(file, root) / "bin/helper").stat().st_mode & 0o7777 == 0o755


def test_of_several_at_once_each_waits_for_the_others(tmp_path: Path, root: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    alone = f"mkdir {tmp_path}/busy && sleep 0.3 && rmdir {tmp_path}/busy"
    (bin_ / "tar").write_text(f'#!/bin/sh\n{alone} && exec {shutil.which("tar")} "$@"\n')
    (bin_ / "tar").chmod(0o755)
    files = [folder_tarball(tmp_path, version) for version in ("1.0.0", "1.1.0")]
    with ThreadPoolExecutor() as pool:
        path = f"{bin_}:{os.environ['PATH']}"
        done = list(pool.map(lambda file: install(file, root, path=path), [*files, files[0]]))
    assert [(one.returncode, one.stderr) for one in done] == [(0, "")] * 3
    # The last of them rules, and the one before it is there to go back to.
    assert versions(root) == sorted(folder_of(file, root).name for file in files)
    assert says(root).startswith("llmgw 1.")
    assert [path.name for path in program(root).parent.iterdir()] == ["llmgw"]


def test_what_killed_runs_left_goes_whoever_has_their_number_now(tmp_path: Path, root: Path) -> None:
    file = folder_tarball(tmp_path)
    left, link = root / f"opt/llmgw/.new-{os.getpid()}", root / f"usr/local/bin/llmgw.new-{os.getpid()}"
    left.mkdir(parents=True)
    link.parent.mkdir(parents=True)
    link.symlink_to(left)
    assert install(file, root).returncode == 0
    assert versions(root) == [folder_of(file, root).name]
    assert [path.name for path in link.parent.iterdir()] == ["llmgw"]


def in_a_mount_namespace(*commands: str) -> Done:
    """Run shell commands where mounts are nobody else's; skips where this user may not."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not make mount namespaces")
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", " && ".join(commands)],
        input=script(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("options", "word"), [("ro", "read-only"), ("size=4k,nr_inodes=1", "full")])
def test_a_place_for_the_symlink_that_takes_none_is_named_and_nothing_stays(
    tmp_path: Path, root: Path, options: str, word: str
) -> None:
    file = folder_tarball(tmp_path)
    place = root / "usr/local/bin"
    place.mkdir(parents=True)
    done = in_a_mount_namespace(
        f"mount -t tmpfs -o {options} none {place}", f"sh -s -- {file} {file.name} {sha256(file)} {root}"
    )
    assert_refused(done, str(place), word)
    assert versions(root) == []


def test_an_option_that_there_is_not_is_no_file(tmp_path: Path, root: Path) -> None:
    file = folder_tarball(tmp_path)
    assert_refused(install(file, root, "--prepared"), "usage: install.sh")


def test_the_place_that_cannot_be_written_is_the_one_that_is_named(tmp_path: Path) -> None:
    file, root, programs = folder_tarball(tmp_path), tmp_path / "root", tmp_path / "programs"
    programs.mkdir()
    (programs / "ln").write_text(
        '#!/bin/sh\necho "ln: failed to create symbolic link: Read-only file system" >&2\nexit 1\n'
    )
    (programs / "ln").chmod(0o755)
    done = install(file, root, path=f"{programs}:{os.environ['PATH']}")
    assert_refused(done, f"{root}/usr/local/bin lies on a file system that is mounted read-only")
    assert not program(root).exists()
