"""What onboard-node refuses, each with one sentence, and before anything on the machine is changed."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path

import pytest

from llmgw.onboarding.ssh_words import explain_remote
from llmgw.pki.authority import Authority
from tests.onboarding.machine import Done, Machine


def refused(machine: Machine, done: Done, *words: str) -> None:
    """It failed with these words, no traceback, and nothing on the machine is ours."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert not machine.etc("agent.pem").exists()
    assert machine.restarts() == 0
    assert machine.left_behind() == []


# As OpenSSH 9.2 prints them.
CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Someone could be eavesdropping on you right now (man-in-the-middle attack)!
It is also possible that a host key has just been changed.
The fingerprint for the ED25519 key sent by the remote host is
SHA256:Vq8u0Vdyx1mM2p0rPw3qk4dQ0Wb1pK7nXm8i2XkqT5s.
Please contact your system administrator.
Add correct host key in /root/.ssh/known_hosts to get rid of this message.
Offending ED25519 key in /root/.ssh/known_hosts:7
  remove with:
  ssh-keygen -f "/root/.ssh/known_hosts" -R "10.0.0.11"
Host key for 10.0.0.11 has changed and you have requested strict checking.
Host key verification failed.
"""
SSH_SAYS = {
    "changed host key": (
        CHANGED,
        "is not the one remembered in /root/.ssh/known_hosts line 7",
        "ssh-keygen -f /root/.ssh/known_hosts -R '10.0.0.11'",
    ),
    "unknown host key": (
        "No ED25519 host key is known for 127.0.0.1 and you have requested strict checking.\n"
        "Host key verification failed.\n",
        "The host key of 127.0.0.1 is not known here",
    ),
    "password": (
        "admin@127.0.0.1: Permission denied (publickey,password).\n",
        "admin@127.0.0.1 wants a password, which is never typed or passed here",
        "ssh-copy-id admin@127.0.0.1",
    ),
    "no key": (
        "root@127.0.0.1: Permission denied (publickey).\n",
        "root@127.0.0.1 takes none of our keys",
        "ssh-add",
    ),
    "refused": ("ssh: connect to host 127.0.0.1 port 22: Connection refused\n", "Nothing listens for ssh at"),
    "no answer": ("ssh: connect to host 127.0.0.1 port 22: Connection timed out\n", "127.0.0.1 does not answer"),
    "no way": ("ssh: connect to host 127.0.0.1 port 22: No route to host\n", "There is no way to 127.0.0.1"),
    "no name": (
        "ssh: Could not resolve hostname 127.0.0.1: Name or service not known\n",
        "The name 127.0.0.1 is not known here",
    ),
    "too many keys": (
        "Received disconnect from 127.0.0.1 port 22:2: Too many authentication failures\n"
        "Disconnected from 127.0.0.1 port 22\n",
        "after too many keys",
        "IdentitiesOnly",
    ),
    "expired password": (
        "WARNING: Your password has expired.\nPassword change required but no TTY available.\n",
        "has expired",
    ),
    "something new": (
        "ssh: the moon is in the way\n",
        "failed: ssh: the moon is in the way",
        "ssh 127.0.0.1 true",
    ),
}


@pytest.mark.parametrize("case", SSH_SAYS)
def test_what_ssh_says_is_a_sentence_with_a_remedy(machine: Machine, pki: Path, case: str) -> None:
    said, *words = SSH_SAYS[case]
    (machine.folder / "ssh-fails").write_text(said)
    done = machine.onboard_here(pki)
    refused(machine, done, *words)
    assert sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 1


SUDO_SAYS = {
    "asks": ("sudo: a password is required", 1, "sudo on 127.0.0.1 asks for a password", "--ssh-user root"),
    "not allowed": ("admin is not in the sudoers file.", 1, "may not become root on 127.0.0.1"),
    "terminal": ("sudo: sorry, you must have a tty to run sudo", 1, "wants a terminal (requiretty"),
    "none": ("sh: 1: sudo: not found", 127, "there is no sudo there"),
}


@pytest.mark.parametrize("case", SUDO_SAYS)
def test_a_user_who_cannot_become_root_is_told_why(machine: Machine, pki: Path, case: str) -> None:
    said, code, *words = SUDO_SAYS[case]
    (machine.folder / "bin" / "id").write_text("#!/bin/sh\necho 1000\n")
    (machine.folder / "bin" / "sudo").write_text(f'#!/bin/sh\necho "{said}" >&2\nexit {code}\n')
    for name in ("id", "sudo"):
        (machine.folder / "bin" / name).chmod(0o755)
    refused(machine, machine.onboard_here(pki), *words)


def test_a_user_who_may_sudo_something_but_no_shell_is_told_why(machine: Machine, pki: Path) -> None:
    (machine.folder / "bin" / "id").write_text("#!/bin/sh\necho 1000\n")
    (machine.folder / "bin" / "sudo").write_text(
        '#!/bin/sh\nif [ "$2" = id ]; then echo 0; exit; fi\necho "sudo: a password is required" >&2\nexit 1\n'
    )
    for name in ("id", "sudo"):
        (machine.folder / "bin" / name).chmod(0o755)
    refused(machine, machine.onboard_here(pki), "sudo on 127.0.0.1 asks for a password", "--ssh-user root")


def test_a_user_who_may_sudo_without_a_password_onboards(machine: Machine, pki: Path) -> None:
    sudo = machine.folder / "bin" / "sudo"
    sudo.write_text(
        '#!/bin/sh\n[ "$1" = -n ] || exit 1\nshift\ntouch "${LLMGW_ROOT%/root}/became-root"\nexec "$@"\n'
    )
    sudo.chmod(0o755)
    # Who asks is nobody in particular until sudo was there.
    here = machine.folder / "bin" / "id"
    here.write_text(
        '#!/bin/sh\nif [ "$1" = -u ] && [ ! -f "${LLMGW_ROOT%/root}/became-root" ]; then echo 1000; else\n'
        '  [ -z "$1" ] || [ "$1" != -u ] || { echo 0; exit; }\n  exec /usr/bin/id "$@"\nfi\n'
    )
    here.chmod(0o755)
    done = machine.onboard_here(pki)
    assert "reach: sudo on Debian" in done.stderr
    assert all("sudo -n sh -c" in line for line in machine.log("ssh") if "mktemp" in line)


@pytest.mark.parametrize(
    ("clock", "words"),
    [
        (-600, "is 10 minutes behind this host's, so a certificate made now would not be valid there yet"),
        (600, "is 10 minutes ahead of this host's"),
    ],
)
def test_a_clock_that_is_ten_minutes_off_is_refused(machine: Machine, pki: Path, clock: int, words: str) -> None:
    (machine.folder / "clock").write_text(f"{clock}\n")
    refused(machine, machine.onboard_here(pki), words, "timedatectl set-ntp true")


def test_a_machine_that_is_called_otherwise_is_refused_unless_insisted_on(machine: Machine, pki: Path) -> None:
    (machine.folder / "hostname").write_text("db7\n")
    refused(machine, machine.onboard_here(pki), "is called 'db7', not node01", "hostnamectl set-hostname node01")
    assert machine.onboard_here(pki, "--force").returncode == 0


def test_another_architecture_is_refused_with_the_name_of_the_file_for_it(machine: Machine, pki: Path) -> None:
    (machine.folder / "machine").write_text("riscv64\n")
    release = machine.release()
    done = machine.onboard_here(pki, "--binary", str(release))
    refused(machine, done, "node01 is riscv64", f"--binary {release.name.replace('x86_64', 'riscv64')}")


def test_a_machine_without_python_venv_is_told_the_package_and_the_file_that_needs_none(
    machine: Machine, pki: Path
) -> None:
    wheels = machine.folder / "llmgw-9.9.9-wheels-cp311-x86_64.tar.gz"
    wheels.write_bytes(b"")
    (machine.folder / "machine").write_text("x86_64\n")
    for name in ("python3", "python3.11"):
        (machine.folder / "bin" / name).write_text(f'#!/bin/sh\necho "python cp311 bare /usr/bin/{name}"\n')
        (machine.folder / "bin" / name).chmod(0o755)
    done = machine.onboard_here(pki, "--binary", str(wheels))
    refused(machine, done, "apt-get install python3.11-venv", "--binary llmgw-9.9.9-linux-x86_64")


def test_a_machine_without_that_python_is_told_the_file_that_needs_none(machine: Machine, pki: Path) -> None:
    wheels = machine.folder / "llmgw-9.9.9-wheels-cp399-x86_64.tar.gz"
    wheels.write_bytes(b"")
    (machine.folder / "machine").write_text("x86_64\n")
    done = machine.onboard_here(pki, "--binary", str(wheels))
    refused(machine, done, "node01 has no Python 3.99", "--binary llmgw-9.9.9-linux-x86_64")


def test_a_machine_without_systemd_is_refused(machine: Machine, pki: Path) -> None:
    (machine.root / "run/systemd/system").rmdir()
    refused(machine, machine.onboard_here(pki), "node01 does not run systemd")


def test_a_disk_that_fills_up_is_told_with_the_place(machine: Machine, pki: Path) -> None:
    copy = machine.folder / "bin" / "cp"
    copy.write_text("#!/bin/sh\necho \"cp: error writing '$2': No space left on device\" >&2\nexit 1\n")
    copy.chmod(0o755)
    done = machine.onboard_here(pki)
    refused(machine, done, "no space is left on", "Make room (df -h", "Then run this again")
    copy.unlink()
    assert machine.onboard_here(pki).returncode == 0


@pytest.mark.parametrize(
    ("said", "words"),
    [
        # As GNU tar 1.34 and coreutils 9.1 say it on a full tmpfs.
        ("tar: large: Wrote only 4608 of 10240 bytes\ntar: Exiting with failure status\n", "no space is left on"),
        ("cp: error writing '/etc/llmgw/ca.pem.llmgw-new': No space left on device\n", "on /etc/llmgw/ca.pem"),
        (
            "mkdir: cannot create directory ‘/opt/llmgw’: Read-only file system\n",
            "a file system there is read-only",
        ),
        ("sh: 1: tar: not found\n", "there is no tar on the node"),
        ("", "exit code 75, without a word"),
        (
            "sudo: unable to resolve host node01: Name or service not known\nanother run works on this node\n",
            "failed: another run works on this node",
        ),
    ],
)
def test_what_a_node_says_is_a_sentence(said: str, words: str) -> None:
    assert words in explain_remote("installing the program", 75, said, "node01")


def test_a_disk_with_too_little_room_is_told_before_anything_is_sent(machine: Machine, pki: Path) -> None:
    free = machine.folder / "bin" / "df"
    free.write_text(
        "#!/bin/sh\necho 'Filesystem 1024-blocks Used Available Capacity Mounted on'\n"
        "echo '/dev/x 9 9 0 100% /'\n"
    )
    free.chmod(0o755)
    refused(machine, machine.onboard_here(pki), "0 MiB free on the disk of /opt", "Make room there")


def test_a_machine_that_is_another_node_already_is_refused_unless_insisted_on(
    machine: Machine, pki: Path
) -> None:
    other = Authority.open(pki).issue_client("node07", "127.0.0.1", time.time())
    machine.etc("x").parent.mkdir(parents=True)
    machine.etc("agent.pem").write_text(other.cert_pem)
    done = machine.onboard_here(pki)
    assert done.returncode == 1
    assert "is onboarded as node07 already" in done.stderr
    assert "llmgw ctl node remove node07" in done.stderr
    assert machine.etc("agent.pem").read_text() == other.cert_pem
    assert machine.onboard_here(pki, "--force").returncode == 0


def test_an_address_that_is_not_the_nodes_own_is_refused(machine: Machine, pki: Path) -> None:
    done = machine.onboard_here(pki, "--mgmt-addr", "10.9.8.7")
    refused(machine, done, "node01 does not have the address 10.9.8.7 (it has none that can be seen)")


def test_a_name_to_reach_it_by_needs_the_address_of_its_engines(machine: Machine, pki: Path) -> None:
    (machine.folder / "addresses").write_text("lo 127.0.0.1\neno1 10.0.0.11\n")
    done = machine.onboard_here(pki, "--addr", "gpu-a")
    refused(machine, done, "--addr gpu-a is a name", "node01 has 10.0.0.11")
    assert machine.onboard_here(pki, "--addr", "gpu-a", "--mgmt-if", "eno1").returncode == 0
    assert "mgmt_interface: eno1" in machine.etc("agent.yaml").read_text()
    assert "mgmt_addr" not in machine.etc("agent.yaml").read_text()


def test_an_interface_that_is_not_there_is_refused_with_those_that_are(machine: Machine, pki: Path) -> None:
    refused(machine, machine.onboard_here(pki, "--mgmt-if", "eth9"), "no interface eth9", "it has eno1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--node", "Node_1"], "--node 'Node_1' is not a node id"),
        (["--addr", "-oProxyCommand=x"], "neither an address nor a name"),
        (["--ssh-user", "a b"], "--ssh-user 'a b' is not the name of a user"),
        (["--fabric", "ib a"], "is not a fabric name"),
        (["--fabric", "ib-a:mlx5 0"], "is not an adapter name"),
        (["--fabric", "ib-a:mlx5_0,mlx5_0"], "names an adapter twice"),
        (["--vllm-bin", "vllm"], "--vllm-bin 'vllm' is not a path from /"),
        (["--mgmt-addr", "node01"], "is not an IP address"),
        (["--server", "http://gateway"], "is not an address like https://"),
        (["--binary", "/nowhere/llmgw-1.2.3-linux-x86_64"], "cannot be read: No such file"),
        (["--binary", "/nowhere/llmgw.bin"], "is no file of a release"),
        (["--pki", "/nowhere"], "There is no authority's root certificate at /nowhere/ca.pem"),
        (["--release-key", "/nowhere"], "--release-key /nowhere: there is no such file"),
        (["--fabric", "a:mlx5_0", "--fabric", "b:mlx5_0"], "is under two fabrics"),
    ],
)
def test_a_wrong_option_is_a_sentence(machine: Machine, pki: Path, options: list[str], words: str) -> None:
    refused(machine, machine.onboard_here(pki, *options), words)


def test_a_working_tree_is_not_sent_and_nothing_is_changed(machine: Machine, pki: Path) -> None:
    machine.sends_release = False
    done = machine.onboard_here(pki)
    refused(machine, done, "This llmgw runs from a working tree", "Name a file of a release with --binary")


def test_a_machine_whose_profile_prints_is_onboarded_all_the_same(machine: Machine, pki: Path) -> None:
    ssh = machine.path / "ssh"
    *before, last = ssh.read_text().splitlines()
    ssh.write_text("\n".join([*before, "echo welcome", "echo time flies", last, ""]))
    done = machine.onboard_here(pki)
    assert done.returncode == 0, done.stderr
    assert "doctor: nothing is wrong" in done.stderr


def test_a_machine_that_another_run_works_on_is_refused_before_anything_is_changed(
    machine: Machine, pki: Path
) -> None:
    lock = machine.root / "run" / "llmgw-onboard.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(machine, machine.onboard_here(pki), "Another run of onboard-node works on node01")
    assert machine.onboard_here(pki).returncode == 0


def test_a_control_plane_that_is_not_there_is_named_by_the_option_for_it(machine: Machine, pki: Path) -> None:
    where = {"LLMGW_CTL_SERVER": "http://127.0.0.1:9", "LLMGW_CTL_TOKEN": "secret"}
    done = machine.onboard_here(pki, "--wait", "5", **where)
    refused(machine, done, "nothing listens at http://127.0.0.1:9", "name another with --ctl-server URL")
    assert "--server" not in done.stderr.replace("--ctl-server", "")
    assert "secret" not in done.stderr
