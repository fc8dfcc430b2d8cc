"""Which certificate on a node may stay."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from llmgw.onboarding.credentials import judge
from llmgw.onboarding.facts import NodeFacts
from llmgw.pki.authority import Authority
from llmgw.pki.peer import peer_from_der
from llmgw.pki.renewal import Renewer, make_csr

NOW = time.time()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "pki", now=NOW)


def unfit(
    authority: Authority, pem: str, *, node: str = "node01", address: str = "10.0.0.11", now: float = NOW
) -> str:
    facts = NodeFacts(
        hostname="node01",
        system="Linux",
        machine="x86_64",
        distribution="",
        has_systemd=True,
        clock_ahead_s=0.0,
        files={"agent.pem": pem.encode()},
        key_fits=True,
    )
    return judge(facts, authority, node, address, now).unfit or ""


def renewed(authority: Authority, enrolment: str) -> str:
    peer = peer_from_der(x509.load_pem_x509_certificate(enrolment.encode()).public_bytes(Encoding.DER))
    renewer = Renewer(authority.renewal_cert_pem, authority.renewal_key_pem)
    return renewer.renew(make_csr("node01")[1], peer, NOW)


def test_an_enrolment_and_what_the_server_renewed_from_it_may_stay(authority: Authority) -> None:
    enrolment = authority.issue_client("node01", "10.0.0.11", NOW).cert_pem
    assert unfit(authority, enrolment) == ""
    assert unfit(authority, renewed(authority, enrolment)) == ""


def test_what_was_renewed_from_a_revoked_enrolment_may_not(authority: Authority) -> None:
    enrolment = authority.issue_client("node01", "10.0.0.11", NOW)
    pem = renewed(authority, enrolment.cert_pem)
    authority.revoke(enrolment.serial, NOW)
    assert unfit(authority, pem) == "the node's was revoked"


def test_one_of_another_authority_address_or_time_may_not(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", now=NOW).issue_client("node01", "10.0.0.11", NOW).cert_pem
    own = authority.issue_client("node01", "10.0.0.11", NOW).cert_pem
    assert unfit(authority, other) == "the node's is of another authority"
    assert "is for 10.0.0.11, not for 10.0.0.12" in unfit(authority, own, address="10.0.0.12")
    assert unfit(authority, own, node="node02") == "the node's is that of node01"
    assert "more than half of the life" in unfit(authority, own, now=NOW + 183 * 86400)
    assert "expired on" in unfit(authority, own, now=NOW + 366 * 86400)
    assert "holds only from" in unfit(authority, own, now=NOW - 600)
    assert unfit(authority, "no certificate") == "what the node has cannot be read"
