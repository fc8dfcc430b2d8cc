"""The node's configuration: made from the options, merged into what is there, and nobody's edits lost."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.onboarding.machine import Machine, changed_by, report_of

HAND_MADE = """\
# Ours since 2024; ask Ann before you touch it.
node_id: node01
server: https://gateway.internal:8443
mgmt_addr: 127.0.0.1
fabrics:
  - name: ib-a
    hcas: [mlx5_0, mlx5_1]
    rate_gbps: 400  # HDR200 twice
engines:
  vllm: {bin: /opt/vllm/bin/vllm}
"""


def write(machine: Machine, text: str) -> None:
    machine.etc("agent.yaml").parent.mkdir(parents=True, exist_ok=True)
    machine.etc("agent.yaml").write_text(text)


def test_a_file_of_a_person_that_says_what_the_options_say_is_left_alone(machine: Machine, pki: Path) -> None:
    write(machine, HAND_MADE)
    done = machine.onboard_here(pki, "--vllm-bin", "/opt/vllm/bin/vllm", "--fabric", "ib-a")
    assert done.returncode == 0, done.stderr
    assert machine.etc("agent.yaml").read_text() == HAND_MADE


def test_a_file_of_a_person_that_says_otherwise_stops_onboarding_with_the_difference(
    machine: Machine, pki: Path
) -> None:
    write(machine, HAND_MADE)
    done = machine.onboard_here(pki, "--fabric", "ib-b")
    assert done.returncode == 1
    assert "agent.yaml on node01 was edited by hand, and the options ask for something else" in done.stderr
    assert "-- name: ib-a" in done.stderr
    assert "+- name: ib-b" in done.stderr
    assert "--force-config" in done.stderr
    assert machine.etc("agent.yaml").read_text() == HAND_MADE
    assert not machine.etc("agent.pem").exists()


def test_options_are_merged_into_a_persons_file_when_that_is_wanted_and_it_stays_beside(
    machine: Machine, pki: Path
) -> None:
    write(machine, HAND_MADE)
    done = machine.onboard_here(pki, "--fabric", "ib-a:mlx5_4", "--force-config")
    assert done.returncode == 0, done.stderr
    assert machine.etc("agent.yaml.before").read_text() == HAND_MADE
    merged = yaml.safe_load(machine.etc("agent.yaml").read_text())
    assert merged["fabrics"] == [{"name": "ib-a", "hcas": ["mlx5_4"], "rate_gbps": 400.0}]
    assert merged["engines"] == {"vllm": {"bin": "/opt/vllm/bin/vllm"}}


def test_a_file_of_ours_that_was_edited_is_a_persons(machine: Machine, pki: Path) -> None:
    machine.onboard_here(pki)
    edited = machine.etc("agent.yaml").read_text() + "heartbeat_interval: 2s\n"
    write(machine, edited)
    done = machine.onboard_here(pki, "-o", "json")
    assert changed_by(done) == []
    assert machine.etc("agent.yaml").read_text() == edited
    assert machine.onboard_here(pki, "--fabric", "ib-a").returncode == 1
    assert machine.etc("agent.yaml").read_text() == edited


def test_a_file_that_is_no_configuration_stops_onboarding_with_its_line(machine: Machine, pki: Path) -> None:
    write(machine, "server: https://gateway.internal:8443\nfabric: ib-a\n")
    done = machine.onboard_here(pki)
    assert done.returncode == 1
    assert "has an /etc/llmgw/agent.yaml that is not good" in done.stderr
    assert "fabric" in done.stderr
    assert machine.onboard_here(pki, "--force-config").returncode == 0
    assert machine.etc("agent.yaml.before").read_text().endswith("fabric: ib-a\n")


def test_a_configuration_that_the_nodes_program_refuses_never_replaces_a_good_one(
    machine: Machine, pki: Path
) -> None:
    machine.onboard_here(pki)
    good = machine.etc("agent.yaml").read_text()
    (machine.folder / "refuses").touch()
    done = machine.onboard_here(pki, "--fabric", "ib-a")
    assert done.returncode == 1
    assert (
        "installing the configuration and the unit failed: error: agent.yaml: line 3: no such key" in done.stderr
    )
    assert machine.etc("agent.yaml").read_text() == good
    assert machine.restarts() == 1
    assert machine.left_behind() == []


def test_a_node_with_a_configuration_needs_no_server_named_and_one_without_does(
    machine: Machine, pki: Path
) -> None:
    machine.server = None
    bare = machine.onboard_here(pki)
    assert bare.returncode == 1
    assert "node01 has no configuration yet: say with --server" in bare.stderr
    write(machine, HAND_MADE)
    assert machine.onboard_here(pki).returncode == 0


def test_a_node_keeps_the_address_of_its_configuration_whatever_it_is_reached_at(
    machine: Machine, pki: Path
) -> None:
    (machine.folder / "addresses").write_text("lo 127.0.0.1\neno1 10.0.0.11\nib0 10.1.0.11\n")
    machine.onboard_here(pki, "--addr", "gpu-a", "--mgmt-addr", "10.1.0.11")
    done = machine.onboard_here(pki, "--addr", "10.0.0.11", "-o", "json")
    assert changed_by(done) == []
    assert report_of(done)["address"] == "10.1.0.11"


def test_a_node_that_was_given_another_address_gets_it_in_certificate_and_configuration(
    machine: Machine, pki: Path
) -> None:
    (machine.folder / "addresses").write_text("eno1 10.0.0.11\n")
    machine.onboard_here(pki, "--addr", "10.0.0.11")
    (machine.folder / "addresses").write_text("eno1 10.0.0.99\n")
    done = machine.onboard_here(pki, "--addr", "10.0.0.99")
    assert done.returncode == 0, done.stderr
    assert "the node's is for 10.0.0.11, not for 10.0.0.99" in done.stderr
    assert yaml.safe_load(machine.etc("agent.yaml").read_text())["mgmt_addr"] == "10.0.0.99"


def test_what_a_person_left_to_its_default_is_left_to_it(machine: Machine, pki: Path) -> None:
    bare = "# the least\nserver: https://gateway.internal:8443\n"
    write(machine, bare)
    done = machine.onboard_here(pki)
    assert done.returncode == 0, done.stderr
    assert "node01 can run no engine at all" in done.stderr
    assert machine.etc("agent.yaml").read_text() == bare
