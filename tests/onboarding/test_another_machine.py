"""One node id is one machine: what the control plane knows of it against what a machine says of itself."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from llmgw.messages.admin import NodeView
from llmgw.messages.findings import Finding
from llmgw.onboarding.checks import check_not_another
from llmgw.onboarding.errors import OnboardError
from llmgw.onboarding.wish import Wish
from llmgw.pki.authority import Authority
from llmgw.pki.peer import Peer, peer_from_der

CLONE = Finding(check="cloned-machine", severity="error", where="node01", what="another boot is refused.")


@pytest.fixture
def carried(pki: Path) -> Peer:
    """What node01 was enrolled with at 10.0.0.11."""
    issued = Authority.open(pki).issue_client("node01", "10.0.0.11", time.time())
    return peer_from_der(x509.load_pem_x509_certificate(issued.cert_pem.encode()).public_bytes(Encoding.DER))


def check(
    peer: Peer | None,
    state: str = "ready",
    *,
    address: str = "10.0.0.12",
    agent_runs: bool = False,
    findings: tuple[Finding, ...] = (),
    force: bool = False,
    known: bool = True,
) -> list[str]:
    """The warnings about a machine that is to be node01."""
    view = NodeView(node_id="node01", state=state, address="10.0.0.11", findings=list(findings))
    warnings: list[str] = []
    wish = Wish(node_id="node01", addr=address, force=force)
    check_not_another(wish, peer, view if known else None, address, warnings.append, agent_runs=agent_runs)
    return warnings


@pytest.mark.parametrize("state", ["ready", "unreachable"])
def test_a_bare_machine_does_not_take_the_name_of_one_that_may_still_work(state: str) -> None:
    with pytest.raises(OnboardError, match="node01 is onboarded elsewhere already: the control plane hear"):
        check(None, state)
    (warning,) = check(None, state, force=True)
    assert "10.0.0.11" in warning


@pytest.mark.parametrize("state", ["lost", "unknown"])
def test_a_bare_machine_may_replace_one_that_is_gone(state: str) -> None:
    assert check(None, state) == []
    assert check(None, known=False) == []


def test_a_machine_that_was_given_another_address_is_the_node_that_is_heard(carried: Peer) -> None:
    assert check(carried, agent_runs=True) == []


def test_a_machine_that_keeps_its_address_is_the_node_whatever_it_carries() -> None:
    assert check(None, address="10.0.0.11") == []


def test_a_copy_of_a_nodes_disk_is_not_that_node_though_it_carries_its_certificate(carried: Peer) -> None:
    with pytest.raises(OnboardError, match="node01 is onboarded elsewhere already"):
        check(carried)
    with pytest.raises(OnboardError, match="node01 is onboarded elsewhere already"):
        check(carried, agent_runs=True, findings=(CLONE,))


def test_a_copy_that_is_to_be_another_node_is_not_told_to_remove_the_one_it_was_made_of(carried: Peer) -> None:
    wish = Wish(node_id="node02", addr="10.0.0.12")
    with pytest.raises(OnboardError, match="If its disk is a copy of that one's, insist with --force"):
        check_not_another(wish, carried, None, "10.0.0.12", lambda _: None, agent_runs=False)
