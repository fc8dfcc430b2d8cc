"""Which certificate on a node may stay."""

from __future__ import annotations

import base64
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
    authority: Authority,
    pem: str | bytes,
    *,
    node: str = "node01",
    address: str = "10.0.0.11",
    now: float = NOW,
    removed_at: float | None = None,
) -> str:
    facts = NodeFacts(
        hostname="node01",
        system="Linux",
        machine="x86_64",
        distribution="",
        has_systemd=True,
        clock_ahead_s=0.0,
        files={"agent.pem": pem.encode() if isinstance(pem, str) else pem},
        key_fits=True,
    )
    return judge(facts, authority, node, address, now, removed_at).unfit or ""


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


def test_one_of_before_the_nodes_removal_may_not_and_one_of_after_it_may(authority: Authority) -> None:
    pem = authority.issue_client("node01", "10.0.0.11", NOW).cert_pem
    assert "the node was removed on " in unfit(authority, pem, removed_at=NOW + 2)
    assert unfit(authority, pem, removed_at=NOW - 2) == ""
    assert "the node was removed on " in unfit(authority, renewed(authority, pem), removed_at=NOW + 2)


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        ("a003020102", "a003020109"),  # version 10
        ("0603551d13", "0603551d11"),  # two extensions of one kind
        ("2a8648ce3d040302", "2a8648ce3d040399"),  # signed in a way that nobody knows
        ("0603551d11", "0603551d99"),  # without the names
    ],
    ids=["version", "extension twice", "signature", "names"],
)
def test_one_that_breaks_the_rules_of_x509_is_replaced_like_any_that_cannot_be_read(
    authority: Authority, part: str, instead: str
) -> None:
    issued = authority.issue_client("node01", "10.0.0.11", NOW).cert_pem
    der = x509.load_pem_x509_certificate(issued.encode()).public_bytes(Encoding.DER)
    broken = der.replace(bytes.fromhex(part), bytes.fromhex(instead))
    assert broken != der
    body = base64.encodebytes(broken).decode()
    pem = f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"
    assert unfit(authority, pem) == "what the node has cannot be read"
