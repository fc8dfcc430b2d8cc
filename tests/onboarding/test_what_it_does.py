"""What onboard-node leaves on a machine, and what it changes when it is run again."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest
import yaml

from llmgw.pki.authority import Authority
from tests.onboarding.machine import Machine, changed_by, report_of

UNIT = "etc/systemd/system/llmgw-agent.service"


def issued(pki: Path) -> int:
    return len(list((pki / "issued").glob("*.pem")))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_everything_lies_where_the_layout_says_with_its_mode_and_no_secret_was_on_a_command_line(
    machine: Machine, pki: Path
) -> None:
    done = machine.onboard_here(pki)
    assert done.returncode == 0, done.stderr
    assert machine.etc("ca.pem").read_text() == Authority.open(pki).ca_pem
    assert [mode(machine.etc(name)) for name in ("agent.pem", "agent-key.pem", "agent.yaml", "ca.pem")] == [
        *(0o644, 0o600, 0o644, 0o644)
    ]
    trusted = machine.root / "usr/local/share/ca-certificates/llmgw-ca.crt"
    assert trusted.read_text() == Authority.open(pki).ca_pem
    assert mode(trusted.parent) == 0o755
    assert machine.log("trust") == ["update-ca-certificates "]
    assert (machine.root / "usr/local/bin/llmgw").resolve().is_relative_to(machine.root / "opt/llmgw")
    assert "ExecStart=/usr/local/bin/llmgw agent" in (machine.root / UNIT).read_text()
    assert "enable llmgw-agent.service" in machine.log("systemctl")
    assert machine.restarts() == 1
    secret = machine.etc("agent-key.pem").read_text().splitlines()[1]
    assert all(secret not in line and "PRIVATE KEY" not in line for line in machine.log("ssh"))
    assert machine.left_behind() == []
    assert "the agent was not" not in done.stderr
    assert "node01 is onboarded (the control plane was not asked)" in done.stdout


def test_a_second_run_changes_nothing_and_does_not_restart(machine: Machine, pki: Path) -> None:
    machine.onboard_here(pki)
    before = {path: path.stat().st_mtime_ns for path in machine.root.rglob("*") if path.is_file()}
    count = issued(pki)
    done = machine.onboard_here(pki, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert changed_by(done) == []
    assert machine.restarts() == 1
    assert issued(pki) == count
    lock = machine.root / "run" / "llmgw-onboard.lock"
    assert {p: p.stat().st_mtime_ns for p in machine.root.rglob("*") if p.is_file() and p != lock} == {
        path: at for path, at in before.items() if path != lock
    }


def test_an_option_changes_only_the_keys_it_names_and_restarts_once(machine: Machine, pki: Path) -> None:
    machine.onboard_here(pki, "--fabric", "ib-a", "--nvidia-smi", "/opt/nvidia/nvidia-smi")
    done = machine.onboard_here(pki, "--vllm-bin", "/opt/vllm/bin/vllm", "-o", "json")
    assert changed_by(done) == ["configuration", "agent"]
    assert machine.restarts() == 2
    assert yaml.safe_load(machine.etc("agent.yaml").read_text()) == {
        "node_id": "node01",
        "server": "https://gateway.internal:8443",
        "mgmt_addr": "127.0.0.1",
        "fabrics": [{"name": "ib-a", "hcas": ["mlx5_0", "mlx5_1"]}],
        "discovery": {"nvidia_smi": "/opt/nvidia/nvidia-smi"},
        "engines": {"vllm": {"bin": "/opt/vllm/bin/vllm"}},
    }
    assert report_of(done)["notes"] == []


def test_without_a_path_of_an_engine_it_says_that_only_sim_runs_and_switches_that_on(
    machine: Machine, pki: Path
) -> None:
    done = machine.onboard_here(pki)
    assert "node01 can run only the simulated engine (sim)" in done.stderr
    assert yaml.safe_load(machine.etc("agent.yaml").read_text())["engines"] == {"sim": {"enabled": True}}


def test_another_program_is_installed_and_the_agent_restarted(machine: Machine, pki: Path) -> None:
    machine.onboard_here(pki)
    before = (machine.root / "usr/local/bin/llmgw").readlink()
    done = machine.onboard_here(pki, "--binary", str(machine.release("another")), "-o", "json")
    assert changed_by(done) == ["program", "agent"]
    assert (machine.root / "usr/local/bin/llmgw").readlink() != before
    assert machine.restarts() == 2


def test_a_dry_run_says_what_it_would_do_and_does_nothing(machine: Machine, pki: Path) -> None:
    count = issued(pki)
    before = sorted(machine.root.rglob("*"))
    done = machine.onboard_here(pki, "--dry-run", "--fabric", "ib-a:mlx5_4")
    assert done.returncode == 0, done.stderr
    assert "certificate: would issue one for node01 at 127.0.0.1 (the node has none)" in done.stderr
    assert "program: would install llmgw-" in done.stderr
    assert (
        "configuration: would write /etc/llmgw/agent.yaml, /etc/systemd/system/llmgw-agent.service" in done.stderr
    )
    assert "- mlx5_4" in done.stderr
    assert "agent: would start it" in done.stderr
    assert sorted(machine.root.rglob("*")) == before
    assert issued(pki) == count
    assert machine.restarts() == 0


@pytest.mark.parametrize("session", range(3, 7))
def test_a_run_that_breaks_off_is_completed_by_the_next_and_leaves_nothing_behind(
    machine: Machine, pki: Path, session: int
) -> None:
    (machine.folder / "breaks-at").write_text(str(session))
    broken = machine.onboard_here(pki)
    assert broken.returncode == 1
    assert "broke off" in broken.stderr
    assert "Run this again: it goes on where it was" in broken.stderr
    assert machine.left_behind() == []
    done = machine.onboard_here(pki)
    assert done.returncode == 0, done.stderr
    assert machine.restarts() >= 1
    assert not machine.etc(".restart-due").exists()
    assert changed_by(machine.onboard_here(pki, "-o", "json")) == []
    assert machine.left_behind() == []


def test_a_change_that_a_broken_run_made_is_restarted_for_by_the_next(machine: Machine, pki: Path) -> None:
    machine.onboard_here(pki)
    (machine.folder / "breaks-at").write_text("5")  # all is in place then, and nothing restarted
    broken = machine.onboard_here(pki, "--fabric", "ib-a")
    assert "configuration: " in broken.stderr
    assert machine.restarts() == 1
    assert changed_by(machine.onboard_here(pki, "-o", "json")) == ["agent"]
    assert machine.restarts() == 2


def test_what_doctor_finds_is_printed_and_an_error_of_it_is_the_exit_code(machine: Machine, pki: Path) -> None:
    finding = '{"check": "c", "severity": "%s", "where": "node01 GPUs", "what": "too few", "remedy": "add one"}'
    (machine.folder / "findings.json").write_text('{"findings": [%s], "checks": []}' % (finding % "warning"))
    done = machine.onboard_here(pki)
    assert done.returncode == 0
    assert "WARNING: node01 GPUs: too few" in done.stdout
    assert "what to do: add one" in done.stdout
    (machine.folder / "findings.json").write_text('{"findings": [%s], "checks": []}' % (finding % "error"))
    done = machine.onboard_here(pki)
    assert done.returncode == 1
    assert "llmgw doctor found 1 error on node01" in done.stderr


@pytest.mark.parametrize(
    ("folder", "program", "target"),
    [
        ("etc/pki/ca-trust/source/anchors", "update-ca-trust", "etc/pki/ca-trust/source/anchors/llmgw-ca.pem"),
        ("etc/pki/trust/anchors", "update-ca-certificates", "etc/pki/trust/anchors/llmgw-ca.pem"),
        (
            "usr/local/share/ca-certificates",
            "update-ca-certificates",
            "usr/local/share/ca-certificates/llmgw-ca.crt",
        ),
    ],
    ids=["Red Hat", "SUSE", "Debian"],
)
def test_the_root_is_trusted_in_the_way_of_the_distribution(
    machine: Machine, pki: Path, folder: str, program: str, target: str
) -> None:
    (machine.root / folder).mkdir(parents=True)
    (machine.folder / "bin" / "update-ca-certificates").rename(machine.folder / "bin" / program)
    assert machine.onboard_here(pki).returncode == 0
    assert (machine.root / target).read_text() == Authority.open(pki).ca_pem
    assert [line.split()[0] for line in machine.log("trust")] == [program]


def test_a_program_that_updates_the_store_and_fails_is_a_note_and_tried_again(
    machine: Machine, pki: Path
) -> None:
    updates = machine.folder / "bin" / "update-ca-certificates"
    updates.write_text("#!/bin/sh\necho 'rehash: no such program' >&2\nexit 1\n")
    done = machine.onboard_here(pki)
    assert done.returncode == 0
    assert "update-ca-certificates failed (rehash: no such program)" in done.stderr
    assert not (machine.root / "usr/local/share/ca-certificates/llmgw-ca.crt").exists()


def test_a_key_of_releases_is_pinned_and_stays_until_another_is_named(machine: Machine, pki: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    keys = []
    for number in range(2):
        path = machine.folder / f"release{number}.pub"
        key = Ed25519PrivateKey.generate().public_key()
        path.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        keys.append(path)
    machine.onboard_here(pki, "--release-key", str(keys[0]))
    assert machine.etc("release.pub").read_bytes() == keys[0].read_bytes()
    machine.onboard_here(pki)
    assert machine.etc("release.pub").read_bytes() == keys[0].read_bytes()
    machine.onboard_here(pki, "--release-key", str(keys[1]))
    assert machine.etc("release.pub").read_bytes() == keys[1].read_bytes()


def test_a_signature_beside_the_file_is_verified_before_the_node_is_reached(machine: Machine, pki: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    from llmgw.release.signature import sign

    release = machine.release()
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    public = machine.folder / "release.pub"
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    release.with_name(release.name + ".sig").write_text(sign(other, release))
    done = machine.onboard_here(pki, "--release-key", str(public))
    assert done.returncode == 1
    assert f"The signature of {release.name} was not made with" in done.stderr
    assert machine.log("ssh") == []
    release.with_name(release.name + ".sig").write_text(sign(key, release))
    assert machine.onboard_here(pki, "--release-key", str(public)).returncode == 0


def test_a_certificate_stays_for_half_of_its_life_and_is_then_replaced(machine: Machine, pki: Path) -> None:
    authority = Authority.open(pki)
    machine.onboard_here(pki)
    first = machine.etc("agent.pem").read_text()
    old = authority.issue_client("node01", "127.0.0.1", time.time() - 200 * 86400)
    machine.etc("agent.pem").write_text(old.cert_pem)
    machine.etc("agent-key.pem").write_text(old.key_pem)
    done = machine.onboard_here(pki)
    assert "more than half of the life of the node's is over" in done.stderr
    assert machine.etc("agent.pem").read_text() not in (first, old.cert_pem)
    assert machine.restarts() == 2


def test_a_certificate_whose_key_is_another_is_replaced(machine: Machine, pki: Path) -> None:
    machine.onboard_here(pki)
    other = Authority.open(pki).issue_client("node01", "127.0.0.1", time.time())
    machine.etc("agent-key.pem").write_text(other.key_pem)
    done = machine.onboard_here(pki)
    assert "the key on the node was not seen to belong to it" in done.stderr
    assert machine.etc("agent.pem").read_text() != other.cert_pem


def test_a_program_of_this_version_on_the_node_stays_when_no_other_is_named(machine: Machine, pki: Path) -> None:
    machine.onboard_here(pki)
    machine.sends_release = False
    done = machine.onboard_here(pki, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert changed_by(done) == []


def test_a_newer_program_on_the_node_stays_when_no_other_is_named(machine: Machine, pki: Path) -> None:
    machine.onboard_here(pki, "--binary", str(machine.release(version="99.1.0")))
    machine.sends_release = False
    done = machine.onboard_here(pki)
    assert done.returncode == 0, done.stderr
    assert "program: llmgw 99.1.0 stays" in done.stderr


def test_a_bare_machine_under_a_name_that_had_certificates_is_told_how_to_revoke_them(
    machine: Machine, pki: Path
) -> None:
    machine.node = "node77"
    (machine.folder / "hostname").write_text("node77\n")
    assert "still hold" not in machine.onboard_here(pki).stderr
    machine.etc("agent.pem").unlink()
    done = machine.onboard_here(pki)
    assert "node77 has had 1 certificate that still hold" in done.stderr
    assert "llmgw ctl cert revoke " in done.stderr


@pytest.mark.parametrize("name", ["agent.pem", "agent-key.pem", "ca.pem", "agent.yaml"])
def test_a_folder_where_a_file_belongs_is_told_and_nothing_is_put_into_it(
    machine: Machine, pki: Path, name: str
) -> None:
    machine.etc(name).mkdir(parents=True)
    done = machine.onboard_here(pki)
    assert done.returncode == 1
    assert f"{machine.etc(name)} is a folder, and a file belongs there: move it away" in done.stderr
    assert list(machine.etc(name).iterdir()) == []
    machine.etc(name).rmdir()
    assert machine.onboard_here(pki).returncode == 0
    assert list(machine.etc("").glob("*.llmgw-new")) == []


def test_a_file_where_a_folder_belongs_is_told(machine: Machine, pki: Path) -> None:
    machine.etc("").write_text("")
    done = machine.onboard_here(pki)
    assert done.returncode == 1
    assert f"{machine.root}/etc/llmgw cannot be made" in done.stderr


def test_a_key_that_a_link_leads_to_is_no_difference_and_is_closed_to_others(machine: Machine, pki: Path) -> None:
    machine.onboard_here(pki)
    kept = machine.folder / "kept-key.pem"
    machine.etc("agent-key.pem").rename(kept)
    machine.etc("agent-key.pem").symlink_to(kept)
    assert changed_by(machine.onboard_here(pki, "-o", "json")) == []
    kept.chmod(0o644)
    assert changed_by(machine.onboard_here(pki, "-o", "json")) == ["identity", "agent"]
    assert kept.stat().st_mode & 0o777 == 0o600
